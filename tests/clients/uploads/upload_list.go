// Uploads lists through the generated client, and prints what came of each.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	api "mailprobe.test/generated/client"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	settings := api.NewConfiguration()
	settings.Servers = api.ServerConfigurations{{URL: os.Getenv("BASE_URL")}}
	lists := api.NewAPIClient(settings).ListsAPI
	ctx := context.WithValue(context.Background(), api.ContextAccessToken, os.Getenv("KEY"))
	for _, name := range os.Args[1:] {
		file, err := os.Open(name)
		must(err)
		sent, _, err := lists.CreateList(ctx).Body(file).Name(name).Execute()
		must(err)
		for found := sent; found.Status != "done"; time.Sleep(100 * time.Millisecond) {
			found, _, err = lists.GetList(ctx, sent.ListId).Execute()
			must(err)
		}
		results, _, err := lists.GetListResults(ctx, sent.ListId).Format("ndjson").Execute()
		must(err)
		fmt.Printf("%s %d\n%s", sent.Name, sent.Rows, results)
	}
}
