"""verify-email, by the way its documentation has for many: a pool of processes, one a processor.

(fast_verify.py in its package. Its other two ways, a list in one call and
verify_email_async, ask one address after the other.)
"""

from multiprocessing import Pool

from verify_email import verify_email  # type: ignore[import-not-found]  # it lives elsewhere

from .runner import UNSURE, RunnerClock, read_addresses, report, word


def verify(address: str) -> str | None:
    """The answer, or None where it raised an error."""
    try:
        return word(verify_email(address))
    except Exception:  # whatever it is: this address has no answer, the next may have
        return None


def main() -> None:
    addresses = read_addresses()
    with RunnerClock() as clock, Pool() as pool:
        answers = pool.map(verify, addresses)
        pool.close()
        pool.join()  # only then is their processor time known
    reported = {
        address: answer or UNSURE for address, answer in zip(addresses, answers, strict=True)
    }
    report(reported, clock, answers.count(None))


if __name__ == "__main__":
    main()
