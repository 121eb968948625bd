// connrate.cc - how many connections a second can be set up, accepted and closed.
// SPDX-License-Identifier: Apache-2.0
//
//   connrate server -p PORT | -u PATH
//   connrate client -p PORT | -u PATH  -t SECONDS
//
// One connection at a time: the client connects and waits for the end of the stream, the server
// accepts and closes, the client closes. The server closes first, so with TCP the TIME_WAIT is the
// listening side's and the client doesn't run out of local ports, as it is with HTTP and
// "Connection: close".

#include <getopt.h>

#include <cinttypes>

#include "measuring.h"

namespace postern::perf {
namespace {

constexpr std::uint64_t kSecondsMax = 3600;
constexpr std::uint64_t kCountPerClockRead = 16;  // a clock read costs little, but not nothing
constexpr int kWarmupCount = 100;

void ServeForever(const Endpoint& endpoint) {
  const int listener = Listen(endpoint);
  for (;;) {
    if (::close(Accept(listener)) != 0) Die("close");
  }
}

void ConnectOnce(const SocketAddress& address) {
  const int fd = Dial(address);
  char byte = 0;
  if (RecvAll(fd, &byte, 1)) DieWith("bytes on a connection that carries none");
  if (::close(fd) != 0) Die("close");
}

void RunClient(const Endpoint& endpoint, std::uint64_t seconds) {
  const SocketAddress address(endpoint);
  for (int i = 0; i < kWarmupCount; ++i) ConnectOnce(address);
  const double start_s = SecondsNow();
  const double end_s = start_s + static_cast<double>(seconds);
  std::uint64_t count = 0;
  double now_s = start_s;
  while (now_s < end_s) {
    for (std::uint64_t i = 0; i < kCountPerClockRead; ++i) ConnectOnce(address);
    count += kCountPerClockRead;
    now_s = SecondsNow();
  }
  const double took_s = now_s - start_s;
  std::printf("connections %" PRIu64
              "\nseconds %.6f\nconns_per_sec %.1f\nusec_per_connection %.4f\n",
              count, took_s, static_cast<double>(count) / took_s,
              took_s * 1e6 / static_cast<double>(count));
}

}  // namespace
}  // namespace postern::perf

int main(int argc, char** argv) {
  postern::perf::Endpoint endpoint;
  std::uint64_t seconds = 5;
  int option = 0;
  while ((option = ::getopt(argc, argv, "p:u:t:")) != -1) {
    switch (option) {
      case 'p':
        endpoint.port = static_cast<std::uint16_t>(postern::perf::ParseNumber(optarg, 65535));
        break;
      case 'u':
        endpoint.unix_path = optarg;
        break;
      case 't':
        seconds = postern::perf::ParseNumber(optarg, postern::perf::kSecondsMax);
        break;
      default:
        return 2;
    }
  }
  const std::string_view role = optind < argc ? argv[optind] : "";
  if (role == "server") postern::perf::ServeForever(endpoint);
  if (role == "client") {
    postern::perf::RunClient(endpoint, seconds);
    return 0;
  }
  std::fprintf(stderr, "usage: connrate server|client -p PORT | -u PATH  [-t SECONDS]\n");
  return 2;
}
