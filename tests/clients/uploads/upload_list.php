<?php
// Uploads lists through the generated client, and prints what came of each.
require 'GuzzleHttp/autoload.php';
spl_autoload_register(function (string $name): void {
    require __DIR__ . '/lib/' . strtr(substr($name, strlen('OpenAPI\\Client\\')), '\\', '/') . '.php';
});

$settings = (new OpenAPI\Client\Configuration())
    ->setHost(getenv('BASE_URL'))
    ->setAccessToken(getenv('KEY'));
$lists = new OpenAPI\Client\Api\ListsApi(new GuzzleHttp\Client(), $settings);
foreach (array_slice($argv, 1) as $name) {
    $sent = $lists->createList(new SplFileObject($name), name: $name);
    $id = $sent->getListId();
    while ($lists->getList($id)->getStatus() !== 'done') {
        usleep(100_000);
    }
    printf("%s %d\n%s", $sent->getName(), $sent->getRows(), $lists->getListResults($id));
}
