// cluster.js - node's cluster module: cluster.js PORT. Four workers share a port; one that dies is replaced.
// SPDX-License-Identifier: Apache-2.0
//
// node's own scheduling ("rr") accepts in the primary and passes each connection on to a worker by SCM_RIGHTS;
// NODE_CLUSTER_SCHED_POLICY=none has the workers accept from a listener that was passed to them.
'use strict';
const cluster = require('cluster');
const fs = require('fs');
const http = require('http');

const [port, docs] = [Number(process.argv[2]), process.argv[3]];

function serve() {
  const bodies = new Map(fs.readdirSync(docs).map((name) => [`/${name}`, fs.readFileSync(`${docs}/${name}`)]));
  const server = http.createServer((request, response) => {
    const body = bodies.get(request.url);
    response.writeHead(body ? 200 : 404, {'content-length': body ? body.length : 0});
    response.end(body);
  });
  server.keepAliveTimeout = 60000;
  server.listen(port, '127.0.0.1');
}

if (cluster.isPrimary) {
  for (let n = 0; n < 4; n++) cluster.fork();
  cluster.on('listening', (worker) => console.log(`worker ${worker.process.pid}`));
  cluster.on('exit', (worker, code, signal) => {
    console.log(`gone ${worker.process.pid} ${signal || code}`);
    cluster.fork();
  });
  process.on('SIGTERM', () => process.exit(0));
} else {
  process.on('disconnect', () => process.exit(0));
  serve();
}
