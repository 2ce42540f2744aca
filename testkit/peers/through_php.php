<?php
// through_php.php PORT [0|1 [USER PASSWORD]]: php-memcached in text or binary mode, with SASL where there is
// a user; checks its commands and result codes; exit 0 if all are right.
[$port, $binary, $user, $password] = [(int)$argv[1], (bool)($argv[2] ?? 0), $argv[3] ?? null, $argv[4] ?? null];
function client($password) {
    global $port, $binary, $user;
    $m = new Memcached();
    $m->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
    if ($user !== null) $m->setSaslAuthData($user, $password);
    $m->addServer('127.0.0.1', $port);
    return $m;
}
$m = client($password);
$failed = 0;
function check($what, $holds) {
    global $m, $failed;
    if (!$holds) { $failed++; echo "$what does not hold: ", $m->getResultCode(), ' ', $m->getResultMessage(), "\n"; }
}
check('set', $m->set('a', 'one') === true);
check('get', $m->get('a') === 'one');
check('a miss', $m->get('none') === false && $m->getResultCode() === Memcached::RES_NOTFOUND);
check('add over', $m->add('a', 'two') === false && $m->getResultCode() === ($binary ? Memcached::RES_DATA_EXISTS : Memcached::RES_NOTSTORED));
check('add', $m->add('b', 'two') === true);
check('replace', $m->replace('b', 'three') === true);
check('replace nothing', $m->replace('none', 'x') === false);
$m->setOption(Memcached::OPT_COMPRESSION, false);
$m->set('s', 'b');
check('append', $m->append('s', 'c') && $m->prepend('s', 'a') && $m->get('s') === 'abc');
$m->set('n', 10);
check('increment', $m->increment('n', 5) === 15);
check('decrement', $m->decrement('n', 20) === 0);
check('increment nothing', $m->increment('none') === false);
check('touch', $m->touch('a', 100) === true);
check('touch nothing', $m->touch('none', 100) === false);
$got = $m->get('a', null, Memcached::GET_EXTENDED);
check('gets', $got['value'] === 'one' && $got['cas'] > 0);
check('cas', $m->cas($got['cas'], 'a', 'uno') === true);
check('cas again', $m->cas($got['cas'], 'a', 'dos') === false && $m->getResultCode() === Memcached::RES_DATA_EXISTS);
$many = [];
for ($i = 0; $i < 300; $i++) $many["many$i"] = str_repeat("v$i", $i % 50 + 1);
check('setMulti', $m->setMulti($many) === true);
check('getMulti', $m->getMulti(array_keys($many)) == $many);
check('getMulti in order', array_keys($m->getMulti(['many3', 'none', 'many1'], Memcached::GET_PRESERVE_ORDER)) === ['many3', 'none', 'many1']);
check('getDelayed', $m->getDelayed(['many1', 'many2']) && count($m->fetchAll()) === 2);
check('deleteMulti', $m->deleteMulti(['many1', 'many2']) == ['many1' => true, 'many2' => true]);
check('delete', $m->delete('b') === true && $m->delete('b') === false);
foreach ([1, 8000, 8192, 10240, 102400, 900000] as $n) {
    check("set of $n bytes", $m->set('big', str_repeat('x', $n)) === true);
    check("get of $n bytes", strlen((string)$m->get('big')) === $n);
}
$m->set('types', ['list' => [1, 2.5, null, true]]);
check('a structure', $m->get('types') === ['list' => [1, 2.5, null, true]]);
$m->setOption(Memcached::OPT_NO_BLOCK, true);
$m->setOption(Memcached::OPT_BUFFER_WRITES, true);
for ($i = 0; $i < 200; $i++) $m->set("buffered$i", (string)$i);
$m->flushBuffers();
check('buffered writes', $m->get('buffered199') === '199' && $m->get('buffered0') === '0');
$q = client($password);
// In binary libmemcached ignores the answer to a flush, so check the data.
check('flush is refused', ($q->flush() === false || $binary) && $q->get('types') !== false);
check('getVersion', is_array($q->getVersion()));
if ($user !== null) check('a wrong password is refused', client($password . 'x')->set('a', 1) === false);
echo $failed ? "$failed failed\n" : "php-memcached: all words hold\n";
exit($failed ? 1 : 0);
