// Uploads lists through the generated client, and prints what came of each.
import java.io.File;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.ListsApi;
import org.openapitools.client.auth.HttpBearerAuth;
import org.openapitools.client.model.ListResponse;

public class UploadList {
    public static void main(String[] files) throws Exception {
        ApiClient client = new ApiClient();
        client.setBasePath(System.getenv("BASE_URL"));
        ((HttpBearerAuth) client.getAuthentication("standardKey")).setBearerToken(System.getenv("KEY"));
        ListsApi lists = new ListsApi(client);
        for (String file : files) {
            ListResponse sent = lists.createList(
                new File(file), null, null, null, file, null, null, null, null, null, null, null, null, null);
            String id = sent.getListId();
            while (!lists.getList(id).getStatus().getValue().equals("done")) {
                Thread.sleep(100);
            }
            System.out.println(sent.getName() + " " + sent.getRows());
            System.out.print(lists.getListResults(id, "ndjson", null, null));
        }
    }
}
