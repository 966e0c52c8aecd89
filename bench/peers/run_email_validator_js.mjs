// email-validator-js, as its documentation says for large lists: verifyEmailBatch with a
// concurrency of 10, its cache given so that MX records and ports are kept. The second word
// on the command line changes the concurrency ("all": every address at once).
//
//   node run_email_validator_js.mjs FOLDER [CONCURRENCY]
//
// FOLDER holds its node_modules. The protocol is that of runner.py.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, concurrency = "10"] = process.argv.slice(2);
const { getDefaultCache, verifyEmailBatch } = createRequire(`${folder}/`)(
  "@emailcheck/email-validator-js",
);
const addresses = JSON.parse(readFileSync(0, "utf8"));

function word(result) {
  if (!result.validFormat || result.isDisposable || result.validMx === false) return "bad";
  if (result.metadata?.error === "INVALID_DOMAIN") return "bad";
  if (result.isCatchAll) return "catch_all";
  if (result.validSmtp === null || result.validSmtp === undefined) return "unsure";
  return result.validSmtp ? "good" : "bad";
}

const cpu = process.cpuUsage();
const began = process.hrtime.bigint();
const { results, summary } = await verifyEmailBatch({
  emailAddresses: addresses,
  concurrency: concurrency === "all" ? addresses.length : Number(concurrency),
  verifyMx: true,
  verifySmtp: true,
  checkDisposable: true,
  skipMxForDisposable: true,
  cache: getDefaultCache(),
});
const tookS = Number(process.hrtime.bigint() - began) / 1e9;
const used = process.cpuUsage(cpu);

const told = Object.fromEntries([...results].map(([address, result]) => [address, word(result)]));
const answer = {
  told,
  took_s: tookS,
  cpu_s: (used.user + used.system) / 1e6,
  raised: summary.errors,
};
process.stdout.write(`\n${JSON.stringify(answer)}\n`, () => process.exit(0));
