// A program in strict TypeScript over the generated types. tests/clients/test_typescript.py
// compiles and runs it; the lines after @ts-expect-error must not compile.
import createClient from "openapi-fetch";
import type { components, paths } from "./api";

declare const process: { env: Record<string, string | undefined>; exitCode?: number };

const client = createClient<paths>({
  baseUrl: process.env.BASE_URL ?? "",
  headers: { Authorization: `Bearer ${process.env.KEY ?? ""}` },
});

type Result = components["schemas"]["VerifyEmailResult"];

function advice(result: Result): string {
  switch (result.status) {
    case "deliverable":
      return "keep";
    case "undeliverable":
    case "invalid":
      return "remove";
    case "unknown":
    case "catch_all":
      return "keep and watch";
    default: {
      const never: never = result.status; // every status is handled
      return never;
    }
  }
}

async function main(): Promise<void> {
  const single = await client.POST("/v1/email/verify", { body: { email: "full@sandbox.test" } });
  if (!single.data || !("email" in single.data)) throw new Error(single.error?.message);
  console.log(single.data.email, single.data.status, advice(single.data));

  const batch = await client.POST("/v1/email/verify/batch", {
    body: { emails: ["deliverable@sandbox.test", "undeliverable@sandbox.test"] },
  });
  for (const result of batch.data?.results ?? []) console.log(result.email, advice(result));

  const refused = await client.POST("/v1/email/verify", { body: { email: "quota@sandbox.test" } });
  console.log(refused.response.status, refused.error?.error);

  const stored = await client.POST("/v1/email/verify", {
    body: { email: "role@sandbox.test", async: true },
  });
  if (!stored.data || !("job_id" in stored.data)) throw new Error("no job");
  const job = await client.GET("/v1/jobs/{id}", { params: { path: { id: stored.data.job_id } } });
  console.log(job.data?.status, job.data?.result?.role);

  const lines = await client.POST("/v1/email/verify/stream", {
    body: { emails: ["typo@sandbox.test"] },
    parseAs: "text",
  });
  const text: string = lines.data ?? "";
  for (const line of text.split("\n").filter(Boolean)) {
    const result = JSON.parse(line) as Result;
    console.log(result.suggestion);
  }

  const sent = await client.POST("/v1/lists", {
    params: { query: { name: "list.csv" } },
    headers: { "Content-Type": "text/csv" },
    body: "email\nfull@sandbox.test\n",
    bodySerializer: (file) => file,
  });
  if (!sent.data) throw new Error(sent.error?.message);
  const path = { id: sent.data.list_id };
  let list = await client.GET("/v1/lists/{id}", { params: { path } });
  while (list.data?.status !== "done") {
    await new Promise((resolve) => setTimeout(resolve, 100));
    list = await client.GET("/v1/lists/{id}", { params: { path } });
  }
  const rows = await client.GET("/v1/lists/{id}/results", { params: { path }, parseAs: "text" });
  const row = JSON.parse(rows.data ?? "") as Result;
  console.log(sent.data.name, list.data.rows, row.email);
}

export function mistakes(): void {
  // @ts-expect-error the address is required
  void client.POST("/v1/email/verify", { body: {} });
  // @ts-expect-error a list is no address
  void client.POST("/v1/email/verify", { body: { email: ["a@sandbox.test"] } });
  // @ts-expect-error there is no such route
  void client.POST("/v1/email/check", { body: { email: "a@sandbox.test" } });
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
