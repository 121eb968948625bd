// http.js - node's own HTTP server and client: http.js server PORT | client PORT. Bodies go both ways and are compared.
// SPDX-License-Identifier: Apache-2.0
'use strict';
const http = require('http');
const crypto = require('crypto');

const [role, port] = [process.argv[2], Number(process.argv[3])];
const REQUESTS = 3000;
const SIZES = [0, 1, 100, 1024, 16385, 100001];

function serve() {
  http.createServer((request, response) => {
    if (request.url === '/echo') {  // back while it still comes
      response.writeHead(200);
      request.pipe(response);
    } else {
      response.end(`hello ${request.url}`);
    }
  }).listen(port, '127.0.0.1');
}

function ask(agent, n) {
  const size = SIZES[n % SIZES.length];
  const body = crypto.randomBytes(size);
  return new Promise((resolve, reject) => {
    const options = {host: '127.0.0.1', port, agent, method: 'POST', path: '/echo', headers: {'content-length': size}};
    const request = http.request(options, (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('end', () => {
        const got = Buffer.concat(pieces);
        if (got.equals(body)) resolve();
        else reject(new Error(`request ${n}: ${size} bytes went, ${got.length} came or others`));
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function load() {
  const agents = [new http.Agent({keepAlive: true, maxSockets: 30}), new http.Agent({keepAlive: false, maxSockets: 20})];
  let next = 0;
  const worker = async () => {
    for (let n = next++; n < REQUESTS; n = next++) await ask(agents[n % 7 === 0 ? 1 : 0], n);
  };
  await Promise.all(Array.from({length: 50}, worker));
  agents.forEach((agent) => agent.destroy());
  console.log(`ok ${REQUESTS}`);
}

if (role === 'server') serve();
else load().catch((error) => { console.log(`failed: ${error.stack}`); process.exit(1); });
