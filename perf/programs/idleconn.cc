// idleconn.cc - holds many silent connections, so that what they cost can be measured from outside.
// SPDX-License-Identifier: Apache-2.0
//
//   idleconn server -p PORT | -u PATH  [-w WORKERS]
//   idleconn client -p PORT | -u PATH  -n COUNT [-m bytes|http|redis]
//
// The client opens connections and exchanges on each of them one message each way: 100 bytes with
// our own server, else one small request with nginx or redis. It stops and prints "ready COUNT"
// twice, after the first connection and after the last, and goes on when it gets a line on standard
// input: the first stop is the base line, in which everything that is paid for once exists already.
// At end of file on standard input it ends, and closes the connections. Both sides keep all
// descriptors, in an array made before the base line. Of a server with workers each, a child of
// fork, accepts one connection.

#include <getopt.h>

#include <cinttypes>
#include <vector>

#include "measuring.h"

namespace postern::perf {
namespace {

constexpr std::size_t kMessageBytes = 100;
constexpr std::uint64_t kCountMax = 500000;

// What is said on each connection. With reply_bytes 0, one recv() of whatever comes has to do.
struct Talk {
  std::string_view request;
  std::size_t reply_bytes = 0;
};

constexpr char kOwnMessage[kMessageBytes + 1] =
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123"
    "456789";
constexpr Talk kOwnTalk = {{kOwnMessage, kMessageBytes}, kMessageBytes};
constexpr Talk kHttpTalk = {"GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n", 0};
constexpr Talk kRedisTalk = {"PING\r\n", 7};  // "+PONG\r\n"

void ServeForever(const Endpoint& endpoint) {
  RaiseFileLimit();
  const int listener = Listen(endpoint);
  std::vector<int> held;
  held.resize(kCountMax);
  char message[kMessageBytes];
  for (std::size_t i = 0;; ++i) {
    if (i >= kCountMax) DieWith("more connections than -n allows");
    held[i] = Accept(listener);
    if (!RecvAll(held[i], message, sizeof(message))) DieWith("closed before the first message");
    SendAll(held[i], message, sizeof(message));
  }
}

void ServeByWorkers(const Endpoint& endpoint, std::uint64_t workers) {
  RaiseFileLimit();
  const int listener = Listen(endpoint);
  for (std::uint64_t i = 0; i < workers; ++i) {
    const pid_t pid = ::fork();
    if (pid < 0) Die("fork");
    if (pid > 0) continue;
    const int fd = Accept(listener);
    char message[kMessageBytes];
    if (!RecvAll(fd, message, sizeof(message))) DieWith("closed before the first message");
    SendAll(fd, message, sizeof(message));
    for (;;) ::pause();
  }
  for (;;) ::pause();
}

int OpenOne(const SocketAddress& address, const Talk& talk) {
  const int fd = Dial(address);
  SendAll(fd, talk.request.data(), talk.request.size());
  char reply[4096];
  if (talk.reply_bytes > 0) {
    if (!RecvAll(fd, reply, talk.reply_bytes)) DieWith("closed before the reply");
    return fd;
  }
  const ssize_t n = ::recv(fd, reply, sizeof(reply), 0);
  if (n < 0) Die("recv");
  if (n == 0) DieWith("closed before the reply");
  return fd;
}

void SayReadyAndWait(std::uint64_t count) {
  std::printf("ready %" PRIu64 "\n", count);
  std::fflush(stdout);
  char byte = 0;
  do {
    if (::read(STDIN_FILENO, &byte, 1) <= 0) std::exit(0);
  } while (byte != '\n');
}

void RunClient(const Endpoint& endpoint, std::uint64_t count, const Talk& talk) {
  RaiseFileLimit();
  const SocketAddress address(endpoint);
  std::vector<int> held;
  held.resize(count);
  held[0] = OpenOne(address, talk);
  SayReadyAndWait(1);
  for (std::uint64_t i = 1; i < count; ++i) held[i] = OpenOne(address, talk);
  SayReadyAndWait(count);
}

}  // namespace
}  // namespace postern::perf

int main(int argc, char** argv) {
  postern::perf::Endpoint endpoint;
  std::uint64_t count = 2000, workers = 0;
  std::string_view talk_name = "bytes";
  int option = 0;
  while ((option = ::getopt(argc, argv, "p:u:n:m:w:")) != -1) {
    switch (option) {
      case 'p':
        endpoint.port = static_cast<std::uint16_t>(postern::perf::ParseNumber(optarg, 65535));
        break;
      case 'u':
        endpoint.unix_path = optarg;
        break;
      case 'n':
        count = postern::perf::ParseNumber(optarg, postern::perf::kCountMax);
        break;
      case 'w':
        workers = postern::perf::ParseNumber(optarg, 1000);
        break;
      case 'm':
        talk_name = optarg;
        break;
      default:
        return 2;
    }
  }
  const std::string_view role = optind < argc ? argv[optind] : "";
  if (role == "server" && workers > 0) postern::perf::ServeByWorkers(endpoint, workers);
  if (role == "server") postern::perf::ServeForever(endpoint);
  if (role == "client" && count > 0) {
    const postern::perf::Talk& talk = talk_name == "http"    ? postern::perf::kHttpTalk
                                      : talk_name == "redis" ? postern::perf::kRedisTalk
                                                             : postern::perf::kOwnTalk;
    postern::perf::RunClient(endpoint, count, talk);
    return 0;
  }
  std::fprintf(
      stderr,
      "usage: idleconn server|client -p PORT | -u PATH  [-n COUNT] [-m bytes|http|redis]\n");
  return 2;
}
