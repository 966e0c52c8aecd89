"""Our side of one host of the market: its tolerance, its queues, its sessions, its verdicts."""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, DomainAtHost
from mailprobe.engine.smtp.controls import CHANGED_S, HostControls, Known, Treatment
from mailprobe.engine.smtp.operators import MailOperators
from mailprobe.engine.smtp.session.confirmation import REFUSES_S
from mailprobe.engine.smtp.tolerance.host import list_wait_s
from mailprobe.engine.smtp.tolerance.limits import Growth, Kind

from .hosts import (
    HostAnswer,
    MarketDomain,
    MarketHost,
    MarketSession,
)
from .policies import (
    ACCEPTED,
    BATCH,
    ENDINGS,
    REFUSED,
    TREATED,
    TREATMENT,
    DomainSeen,
    Ending,
    Policy,
    Row,
    Sent,
)

CONNECTIONS = 4  # to one host
OPENING_TRIPS = 3  # round trips until the first recipient may be sent
REQUEST_S = 3.0  # the engine's deadline of a request
FAILED_S = 300.0  # until a host that does not let us in, and has not banned us, is tried again


class MarketClock(Protocol):
    """What a host's side needs of its client."""

    now: float
    operators: MailOperators

    def at(self, after_s: float, act: Callable[..., None], *arguments: object) -> None: ...
    def request_ended(self, row: Row) -> None: ...


class HostClient:
    """Our side of one host: its tolerance, its queues, its sessions."""

    def __init__(self, client: MarketClock, host: MarketHost, policy: Policy) -> None:
        self._client, self._host, self._policy = client, host, policy
        self.tolerance = policy.tolerance()
        self.budget = self.tolerance.budget
        self.controls = HostControls()
        self._requests: deque[Row] = deque()
        self._lists: dict[str, deque[Row]] = {}  # by account, served in turn
        self._due: deque[DomainSeen] = deque()  # their random names
        self._domains: dict[str, DomainSeen] = {}
        self._held: dict[Treatment, list[tuple[Row, Ending]]] = {ACCEPTED: [], REFUSED: []}
        self._untested: list[Row] = []  # accepted at a new record, before their domain's name
        self._lives: dict[str, bool] = {}  # of mailboxes that may be controls
        self._unproven: Sent | None = None
        self._sessions = self._flying = self._names = 0
        self._is_confirming = False  # a control is on its way
        self._refused_here = 0  # in the session that is answered
        if policy.recognises and (found := client.operators.greets_as(host.greeting)) is not None:
            self.tolerance.known.set_row(found.limits, found.id)

    # -- queues --------------------------------------------------------------------------------

    def join(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.said is not None:
                continue
            if row.is_request:
                self._requests.append(row)
            else:
                self._lists.setdefault(row.account, deque()).append(row)
        self.staff()

    def _next_row(self) -> Row | None:
        if self._requests:
            return self._requests.popleft()
        for account, rows in self._lists.items():
            row = rows.popleft()
            del self._lists[account]
            if rows:
                self._lists[account] = rows  # another's turn comes first
            return row
        return None

    def _put_back(self, row: Row) -> None:
        if row.is_request:
            self._requests.appendleft(row)
        else:
            rows = self._lists.pop(row.account, deque())
            rows.appendleft(row)
            self._lists = {row.account: rows, **self._lists}

    @property
    def _has_work(self) -> bool:
        return bool(self._requests or self._lists or self._due)

    def _is_worth_more(self) -> bool:
        """Do more wait than the sessions send in a batch each?"""
        most = self._sessions * BATCH
        waiting = len(self._requests) + len(self._due)
        return waiting > most or any(waiting + len(rows) > most for rows in self._lists.values())

    def staff(self) -> None:
        """Open the sessions that the work is worth."""
        while self._sessions < CONNECTIONS and self._is_worth_more():
            if self.tolerance.is_resting(self._client.now):
                return self._rest(self.budget.bans.rest_until)
            if self._sessions and not self.budget.has_plenty(1, self._client.now):
                return None
            self._sessions += 1
            self._client.at(OPENING_TRIPS * self._host.away_s, self._greeted)
        if not self._has_work:
            self._confirm()
        return None

    # -- sessions ------------------------------------------------------------------------------

    def _greeted(self) -> None:
        if not self._host.lets_in(self._client.now):
            self._sessions -= 1
            return self._blocked()
        self._step(self._host.open_session(), 0)
        return None

    def _step(self, session: MarketSession, refused: int) -> None:
        """Send the session's next batch, or end it."""
        now = self._client.now
        window = min(self.budget.session_window(refused), BATCH)
        batch = [] if window <= 0 or self.tolerance.is_resting(now) else self._pick(window)
        if not batch:
            self._sessions -= 1
            # A session that was full is followed by another; one that found nothing is not,
            # before an answer or a later time has changed something.
            if window <= 0 or self.tolerance.is_resting(now):
                self.staff()
            elif not self._has_work:
                self._confirm()
            return
        for each in batch:
            self.budget.send(each.kind, each.account, now, each.mailbox)
        self._flying += len(batch)
        self._client.at(self._host.away_s, self._answered, session, batch, refused)

    def _pick(self, window: int) -> list[Sent]:
        """Listed recipients and names that may be sent now; what has no room is turned away."""
        now = self._client.now
        batch: list[Sent] = []
        self._unproven = None
        if self._due and self._names_go_first(window):
            self._pick_names(batch, window)
        has_plenty = self.budget.has_plenty(window, now)
        while len(batch) < window and (row := self._next_row()) is not None:
            if row.said is not None:
                continue
            domain = self._domain(row.address.domain)
            sent = Sent(row.kind, row.account, row.address.lives, domain, row)
            admitted = True if has_plenty else self._admits(sent, row.until, len(batch))
            if admitted:
                batch.append(sent)
            elif admitted is None:
                self._turn_away(row)
            else:
                self._put_back(row)
                break
        if len(batch) < window and self._due:
            self._pick_names(batch, window)
        if not batch and self._unproven is not None:
            control = self._proof(self._unproven)
            batch = [] if control is None else [control]
        return batch

    def _names_go_first(self, window: int) -> bool:
        if self.budget.has_plenty(window + len(self._due), self._client.now):
            return True
        each = 1 / self.budget.share
        return any(len(domain.awaiting) > each for domain in self._due)

    def _pick_names(self, batch: list[Sent], window: int) -> None:
        ordered = sorted(self._due, key=lambda domain: -len(domain.awaiting))
        self._due.clear()
        while ordered and len(batch) < window:
            domain = ordered.pop(0)
            domain.awaiting = [row for row in domain.awaiting if row.said is None]
            if not domain.awaiting:
                domain.is_due = False
                continue
            first = domain.awaiting[0]
            accepts = domain.market.accepts_all
            sent = Sent(domain.name_kind(), first.account, accepts, domain)
            until = max(row.until for row in domain.awaiting)
            admitted = self._admits(sent, until, len(batch))
            if admitted:
                batch.append(sent)
            elif admitted is None:
                self._turn_away_name(domain)
            else:
                ordered.insert(0, domain)
                break
        self._due.extend(ordered)

    # -- the tolerance -------------------------------------------------------------------------

    def _admits(self, sent: Sent, until: float, besides: int) -> bool | None:
        """May it be sent beside so many others? None: nothing is left; False: not yet."""
        tolerance, now = self.tolerance, self._client.now
        kind, account = sent.kind, sent.account
        while tolerance.budget.room(kind, account, now) <= besides:
            is_spent = tolerance.is_spent(kind, account, now)
            if (kind.is_of_list or kind is Kind.LONE_NAME) and (besides or not is_spent):
                return False
            if now < self.controls.known.proving_until:
                return False
            patience_s = max(0.0, until - now) if kind.is_of_list else 0.0
            can_prove = self.controls.known.may_prove(sent.domain.record, now)
            growth = tolerance.growth(kind, account, now, patience_s, is_provable=can_prove)
            if growth is Growth.NOW:
                tolerance.grow()
                continue
            if besides or not is_spent:
                return False
            if growth is Growth.PROVE:
                self._unproven = sent
                return False
            return None
        return True

    def _proof(self, sent: Sent) -> Sent | None:
        """The control that shows whether the host still judges."""
        now, controls = self._client.now, self.controls
        proof = controls.known.find_proof(sent.domain.record, now)
        if proof is None:
            return None
        known, is_postmaster = proof
        controls.known.proves(now, REQUEST_S)
        return self._control(sent.domain, known, ACCEPTED, sent.account, is_postmaster)

    def _control(
        self,
        domain: DomainSeen,
        known: Known,
        expected: Treatment,
        account: str,
        is_postmaster: bool,
    ) -> Sent:
        self.controls.known.asks(known.mailbox, self._client.now)
        lives = domain.market.has_postmaster if is_postmaster else self._lives[known.mailbox]
        kind = Kind.CONTROL if expected is ACCEPTED else Kind.LONE_NAME
        return Sent(
            kind, account, lives, domain,
            known=known, expected=expected, is_postmaster=is_postmaster,
        )  # fmt: skip

    def _turn_away(self, row: Row) -> None:
        """A request is told so; a list's rows come back, all that wait here together."""
        if row.is_request:
            return self._settle(row, Ending.HOST_BUDGET)
        rows = self._lists.pop(row.account, deque())
        rows.appendleft(row)
        for each in rows:
            self.tolerance.turned_away(row.account, self._client.now, each.address.mailbox)
        self._come_back(list(rows), row, Ending.HOST_BUDGET)
        return None

    def _turn_away_name(self, domain: DomainSeen) -> None:
        """Nothing is left for its random name: accepted requests are told 0.90, lists come back."""
        domain.is_due = False
        rows, domain.awaiting = domain.awaiting, []
        of_lists = [row for row in rows if not row.is_request]
        for row in rows:
            if row.is_request:
                self._settle(row, Ending.UNTESTED)
        for account in {row.account for row in of_lists}:
            self.tolerance.turned_away(account, self._client.now, untested=domain.record.name)
        if of_lists:
            self._come_back(of_lists, of_lists[0], Ending.UNTESTED)

    def _come_back(self, rows: list[Row], first: Row, said: Ending) -> None:
        now = self._client.now
        kind = Kind.NAME if said is Ending.UNTESTED else Kind.LIST
        patience_s = max(0.0, first.until - now)
        wait_s = self.tolerance.next_room_s(kind, first.account, now, patience_s)
        self._retry(rows, wait_s, said)

    def _retry(self, rows: list[Row], wait_s: float, said: Ending) -> None:
        """Rows come back then; those whose patience ends before are told this at its end."""
        back_at = self._client.now + wait_s
        later = []
        for row in rows:
            if back_at > row.until:
                self._settle(row, said, row.until if not row.is_request else self._client.now)
            else:
                later.append(row)
        if later:
            self._client.at(wait_s, self.join, later)

    # -- bans ----------------------------------------------------------------------------------

    def _blocked(self) -> None:
        """The host no longer lets us in."""
        now = self._client.now
        is_ban = self.tolerance.blocked(now)
        self._rest(self.budget.bans.rest_until if is_ban else now + FAILED_S)

    def _rest(self, until: float) -> None:
        """What waits here comes back when the host is asked again."""
        rows = [*self._requests]
        for waiting in self._lists.values():
            rows += waiting
        for domain in self._due:
            domain.is_due = False
            rows += domain.awaiting
            domain.awaiting = []
        self._requests.clear()
        self._lists.clear()
        self._due.clear()
        self._retry(rows, until - self._client.now, Ending.BLOCKED)

    # -- answers -------------------------------------------------------------------------------

    def _answered(self, session: MarketSession, batch: list[Sent], refused: int) -> None:
        now = self._client.now
        self._flying -= len(batch)
        self._refused_here = refused
        for place, each in enumerate(batch):
            answer = session.answer(lives=each.lives, now=now)
            if answer is HostAnswer.BLOCKED or not self._host.lets_in(now):
                self._lost(batch[place:])
                self._sessions -= 1
                return self._blocked()
            self.budget.answered(
                each.kind, each.account, now,
                accepted=answer is HostAnswer.ACCEPTED, refused=answer is HostAnswer.REFUSED,
            )  # fmt: skip
            self._judge(each, TREATMENT[answer])
        self._step(session, self._refused_here)
        self.staff()
        return None

    def _lost(self, batch: list[Sent]) -> None:
        """The session ended before these were answered."""
        for each in batch:
            self.budget.recall(each.kind, each.account)
            if each.row is not None:
                self._put_back(each.row)
            elif each.known is None:
                self._due.append(each.domain)
            else:
                self.controls.known.proof_answered(accepted=False)

    def _judge(self, sent: Sent, treatment: Treatment) -> None:
        policy = self._policy
        if sent.known is not None:
            return self._control_answered(sent, treatment)
        if treatment is REFUSED:
            self._note_untested()
            if sent.row is not None:
                self._count_refused()
            if policy.recognises and self.tolerance.known.label in ("", "other"):
                found = self._client.operators.refuses_as(self._host.refusal)
                if found is not None:
                    self.tolerance.known.set_row(found.limits, found.id)
        elif not sent.domain.market.is_own:
            self.tolerance.known.share_host()
        if sent.row is None:
            self._name_answered(sent.domain, treatment)
        elif treatment is REFUSED:
            if policy.spares_names and sent.domain.record.acceptance is None:
                self._name_answered(sent.domain, REFUSED)
            self._conclude(sent.row, Ending.UNDELIVERABLE)
        else:
            self._accepted(sent.row, sent.domain)
        return None

    def _accepted(self, row: Row, domain: DomainSeen) -> None:
        if domain.record.acceptance is not None:
            return self._conclude(row, ENDINGS[domain.record.acceptance])
        if self._must_confirm(ACCEPTED, of_list=not row.is_request):
            self._untested.append(row)
        else:
            self._note_accepted(row)
        self._see(ACCEPTED)
        domain.awaiting.append(row)
        if not domain.is_due:
            domain.is_due = True
            self._due.append(domain)
        return None

    def _name_answered(self, domain: DomainSeen, treatment: Treatment) -> None:
        now, controls = self._client.now, self.controls
        acceptance = Acceptance.SOME if treatment is REFUSED else Acceptance.ALL
        if treatment is REFUSED:
            self._count_refused(is_control=True)
        self._see(treatment)
        self._names += 1
        mailbox = f"name{self._names}@{domain.market.name}"
        self._lives[mailbox] = domain.market.accepts_all
        controls.note_tested(domain.record, mailbox, acceptance, now)
        domain.record.believe(acceptance, inf)
        domain.is_due = False
        of_list = any(not row.is_request for row in domain.awaiting)
        rows, domain.awaiting = domain.awaiting, []
        is_watched = treatment is ACCEPTED and self._must_confirm(ACCEPTED, of_list=of_list)
        for row in rows:
            if is_watched:
                self._conclude(row, Ending.CATCH_ALL)
            else:
                self._settle(row, ENDINGS[acceptance])

    # -- verdicts that wait --------------------------------------------------------------------

    def _must_confirm(self, treatment: Treatment, *, of_list: bool) -> bool:
        now, controls = self._client.now, self.controls
        return self._policy.confirms and (
            controls.has_changed(now)
            or controls.is_at_record(treatment, self._refused_here, now, of_list=of_list)
        )

    def _awaits_proof(self, row: Row, treatment: Treatment) -> bool:
        """Does a list's row wait for a proof that a host which has accepted none judges?"""
        now, is_patient = self._client.now, not row.is_request and row.until > row.began_at
        is_first = treatment is REFUSED and is_patient and self._policy.confirms
        return is_first and self.controls.unconfirmed_s(now) > 0

    def _conclude(self, row: Row, said: Ending) -> None:
        """Tell it, or hold it until a reply of the other kind confirms it."""
        treatment, now = TREATED[said], self._client.now
        awaits_proof = self._awaits_proof(row, treatment)
        self._see(treatment)
        if self._must_confirm(treatment, of_list=not row.is_request) or awaits_proof:
            record = self._domain(row.address.domain).record
            other = self.controls.known.find(treatment.opposite, record, now)
            if self.controls.has_changed(now) or other is not None or awaits_proof:
                self._held[treatment].append((row, said))
                return
        self._believe(row, said)

    def _count_refused(self, *, is_control: bool = False) -> None:
        controls, now = self.controls, self._client.now
        controls.note_refused(now, self._refused_here)
        self._refused_here += 1
        if is_control:
            controls.record.note_controlled(self._refused_here, now)

    def _note_untested(self) -> None:
        """A refusal comes: what was accepted at a new record before it was judged."""
        rows, self._untested = self._untested, []
        for row in rows:
            self._note_accepted(row)

    def _believe(self, row: Row, said: Ending) -> None:
        if TREATED[said] is ACCEPTED:
            self._note_accepted(row)
        else:
            domain, mailbox = self._domain(row.address.domain), row.address.mailbox
            self._lives[mailbox] = row.address.lives
            domain.record.at.unknown_mailbox = mailbox
            self.controls.note_listed_refused(domain.record, self._client.now)
        self._settle(row, said)

    def _note_accepted(self, row: Row) -> None:
        mailbox = row.address.mailbox
        self._lives[mailbox] = row.address.lives
        record = self._domain(row.address.domain).record
        self.controls.note_accepted(mailbox, record, self._client.now, self._refused_here)

    def _see(self, treatment: Treatment) -> None:
        """A reply of this kind: verdicts of the other are confirmed."""
        self.controls.note_seen(treatment)
        held = self._held[treatment.opposite]
        if held:
            self._held[treatment.opposite] = []
            for row, said in held:
                self._believe(row, said)

    # -- controls ------------------------------------------------------------------------------

    def _confirm(self) -> None:
        """Nothing else waits: ask a control for the verdicts that are held."""
        if self._is_confirming:
            return
        for treatment in Treatment:
            held = [each for each in self._held[treatment] if each[0].said is None]
            self._held[treatment] = held
            if held:
                control = self._control_for(treatment, held[0][0])
                if control is None:
                    self._end(treatment)
                else:
                    self._sessions += 1
                    self._is_confirming = True
                    self._client.at(OPENING_TRIPS * self._host.away_s, self._send_control, control)
                return

    def _control_for(self, treatment: Treatment, row: Row) -> Sent | None:
        now, controls, expected = self._client.now, self.controls, treatment.opposite
        domain = self._domain(row.address.domain)
        known, is_postmaster = controls.known.find(expected, domain.record, now), False
        if known is None and expected is ACCEPTED and controls.accepted_nobody():
            known, is_postmaster = controls.known.postmaster(domain.record, now), True
        if known is None:
            return None
        if expected is REFUSED and self._room_for_control(row) <= 0:
            return None
        return self._control(domain, known, expected, row.account, is_postmaster)

    def _lacks_room(self, row: Row) -> bool:
        """Is there a control that is to be refused, but no refusal left for it?"""
        now, record = self._client.now, self._domain(row.address.domain).record
        known = self.controls.known.find(REFUSED, record, now)
        return known is not None and self._room_for_control(row) <= 0

    def _room_for_control(self, row: Row) -> int:
        patience_s = 0.0 if row.is_request else max(0.0, row.until - self._client.now)
        tolerance, now = self.tolerance, self._client.now
        return tolerance.room_for_name(row.name_kind, row.account, now, patience_s)

    def _send_control(self, control: Sent) -> None:
        """A control in a session of its own."""
        now = self._client.now
        self._is_confirming = False
        if not self._host.lets_in(now):
            self._sessions -= 1
            return self._blocked()
        self.budget.send(control.kind, control.account, now)
        self._flying += 1
        session = self._host.open_session()
        self._client.at(self._host.away_s, self._answered, session, [control], 0)
        return None

    def _control_answered(self, sent: Sent, treatment: Treatment) -> None:
        now, controls, known = self._client.now, self.controls, sent.known
        assert known is not None
        controls.known.proof_answered(accepted=treatment is ACCEPTED)
        if treatment is sent.expected:
            if treatment is REFUSED:
                self._count_refused(is_control=True)
            else:
                self._lives[known.mailbox] = sent.lives
                controls.note_accepted(known.mailbox, known.domain, now, self._refused_here)
            return self._see(treatment)
        if treatment is REFUSED:
            self._count_refused()
        if sent.is_postmaster:
            controls.known.note_postmaster_refused(now)
            if not controls.comparable:
                self.tolerance.known.proofs_lack()
            return self._end(REFUSED)
        hour = controls.contradict(known, treatment, now)
        if hour is not None:
            self.tolerance.known.limit_hour(hour)
        for held in Treatment:
            self._end(held)
        return None

    def _end(self, treatment: Treatment) -> None:
        """No control can confirm these: they are told, or asked once more in an hour."""
        now, controls = self._client.now, self.controls
        held, self._held[treatment] = self._held[treatment], []
        has_changed = controls.has_changed(now)
        refuses = now - controls.seen_at[REFUSED] <= REFUSES_S
        for row, said in held:
            if has_changed:
                self._retry_row(row, CHANGED_S, Ending.CHANGED)
            elif treatment is ACCEPTED and not row.is_request and self._lacks_room(row):
                patience_s = max(0.0, row.until - now)
                wait_s = self.tolerance.next_room_s(Kind.NAME, row.account, now, patience_s)
                wait_s = max(wait_s, list_wait_s(patience_s))
                self._retry([row], wait_s, Ending.UNCONFIRMED)
            elif self._awaits_proof(row, treatment):
                self._retry_row(row, controls.unconfirmed_s(now), Ending.UNCONFIRMED)
            else:
                is_untested = said is Ending.DELIVERABLE and not refuses
                self._settle(row, Ending.UNTESTED if is_untested else said)

    def _retry_row(self, row: Row, wait_s: float, said: Ending) -> None:
        if row.is_request:
            self._settle(row, said)
        else:
            self._retry([row], wait_s, said)

    # -- the end -------------------------------------------------------------------------------

    def _domain(self, market: MarketDomain) -> DomainSeen:
        seen = self._domains.get(market.name)
        if seen is None:
            record = DomainAcceptance(DomainAtHost(market.name))
            seen = self._domains[market.name] = DomainSeen(market, record)
        return seen

    def end_request(self, row: Row) -> None:
        """The deadline of a request that is not told."""
        is_accepted = row in self._domain(row.address.domain).awaiting
        self._settle(row, Ending.UNTESTED if is_accepted else Ending.LATE)

    def _settle(self, row: Row, said: Ending, at: float | None = None) -> None:
        if row.said is None:
            now = self._client.now
            row.said, row.said_at = said, now if at is None else at
            if row.is_request:
                self._client.request_ended(row)
