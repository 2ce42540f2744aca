<?php
// deep_php.php PORT 0|1: php-memcached sets 1,000 keys, one by one, and gets 50,000 at once, in text or in binary;
// exit 0 if it has them all. The others are set.
$m = new Memcached();
$m->setOption(Memcached::OPT_BINARY_PROTOCOL, (bool)$argv[2]);
$m->addServer('127.0.0.1', (int)$argv[1]);
$many = [];
for ($i = 0; $i < 50000; $i++) $many["k$i"] = $i < 1000 ? "set $argv[2] $i" : "v$i";
$some = array_slice($many, 0, 1000);
if (!$m->setMulti($some)) { echo "setMulti: ", $m->getResultMessage(), "\n"; exit(1); }
$got = $m->getMulti(array_keys($many));
if ($got === false) { echo "getMulti: ", $m->getResultMessage(), "\n"; exit(1); }
ksort($got); ksort($many);
if ($got !== $many) { echo count($got), " of 50000 are right\n"; exit(1); }
