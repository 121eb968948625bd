// msgrate.cc - message rate of one connection, in the manner of ipc-bench.
// SPDX-License-Identifier: Apache-2.0
//
//   msgrate server -p PORT | -u PATH  -c COUNT -s SIZE [-o]
//   msgrate client -p PORT | -u PATH  -c COUNT -s SIZE [-o]
//
// ipc-bench's tcp and domain-socket programs send a message of SIZE bytes, wait until the peer has
// sent one back, and count that as one message: COUNT round trips. That is the default, and what
// "-c 1000000 -s 100" has always meant. With -o (one way) the client only sends, the server only
// reads, and one byte back at the end says that all has arrived; the time of that byte is part of
// the result, so bytes left in a buffer aren't counted as delivered. Plain blocking send and recv,
// no socket option. Each message carries its number, which the receiver checks.

#include <getopt.h>

#include <cinttypes>
#include <limits>
#include <vector>

#include "measuring.h"

namespace postern::perf {
namespace {

constexpr std::uint64_t kWarmupCount = 1000;  // round trips before the clock starts
constexpr std::uint64_t kSizeBytesMax = 1 << 24;

enum class Mode { kRoundTrip, kOneWay };

struct Plan {
  Endpoint endpoint;
  std::uint64_t count = 1000000;
  std::size_t size_bytes = 100;
  Mode mode = Mode::kRoundTrip;
};

void Stamp(std::vector<char>& message, std::uint64_t number) {
  const std::size_t len_bytes = message.size() < sizeof(number) ? message.size() : sizeof(number);
  std::memcpy(message.data(), &number, len_bytes);
}

void CheckStamp(const std::vector<char>& message, std::uint64_t number) {
  const std::size_t len_bytes = message.size() < sizeof(number) ? message.size() : sizeof(number);
  if (std::memcmp(message.data(), &number, len_bytes) != 0)
    DieWith("message lost, doubled or out of order");
}

void EchoMessages(int fd, std::vector<char>& message, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!RecvAll(fd, message.data(), message.size())) DieWith("peer closed early");
    CheckStamp(message, i);
    SendAll(fd, message.data(), message.size());
  }
}

void PingMessages(int fd, std::vector<char>& message, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Stamp(message, i);
    SendAll(fd, message.data(), message.size());
    if (!RecvAll(fd, message.data(), message.size())) DieWith("peer closed early");
    CheckStamp(message, i);
  }
}

void ReadMessages(int fd, std::vector<char>& message, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (!RecvAll(fd, message.data(), message.size())) DieWith("peer closed early");
    CheckStamp(message, i);
  }
  const char done = 1;
  SendAll(fd, &done, 1);
}

void WriteMessages(int fd, std::vector<char>& message, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Stamp(message, i);
    SendAll(fd, message.data(), message.size());
  }
  char done = 0;
  if (!RecvAll(fd, &done, 1)) DieWith("peer closed early");
}

void RunServer(const Plan& plan) {
  const int fd = Accept(Listen(plan.endpoint));
  std::vector<char> message(plan.size_bytes);
  EchoMessages(fd, message, kWarmupCount);
  if (plan.mode == Mode::kOneWay) {
    ReadMessages(fd, message, plan.count);
  } else {
    EchoMessages(fd, message, plan.count);
  }
  char end = 0;
  if (RecvAll(fd, &end, 1)) DieWith("bytes after the last message");
  ::close(fd);
}

void RunClient(const Plan& plan) {
  const int fd = Dial(SocketAddress(plan.endpoint));
  std::vector<char> message(plan.size_bytes);
  PingMessages(fd, message, kWarmupCount);
  const double start_s = SecondsNow();
  if (plan.mode == Mode::kOneWay) {
    WriteMessages(fd, message, plan.count);
  } else {
    PingMessages(fd, message, plan.count);
  }
  const double took_s = SecondsNow() - start_s;
  ::close(fd);
  const auto count = static_cast<double>(plan.count);
  std::printf("messages %" PRIu64 "\nseconds %.6f\nmsgs_per_sec %.1f\nusec_per_message %.4f\n",
              plan.count, took_s, count / took_s, took_s * 1e6 / count);
}

Plan ParsePlan(int argc, char** argv) {
  Plan plan;
  int option = 0;
  while ((option = ::getopt(argc, argv, "p:u:c:s:o")) != -1) {
    switch (option) {
      case 'p':
        plan.endpoint.port = static_cast<std::uint16_t>(ParseNumber(optarg, 65535));
        break;
      case 'u':
        plan.endpoint.unix_path = optarg;
        break;
      case 'c':
        plan.count = ParseNumber(optarg, std::numeric_limits<std::uint64_t>::max());
        break;
      case 's':
        plan.size_bytes = ParseNumber(optarg, kSizeBytesMax);
        break;
      case 'o':
        plan.mode = Mode::kOneWay;
        break;
      default:
        std::exit(2);
    }
  }
  if (plan.size_bytes == 0 || plan.count == 0) DieWith("count and size must be above 0");
  return plan;
}

}  // namespace
}  // namespace postern::perf

int main(int argc, char** argv) {
  const postern::perf::Plan plan = postern::perf::ParsePlan(argc, argv);
  const std::string_view role = optind < argc ? argv[optind] : "";
  if (role == "server") {
    postern::perf::RunServer(plan);
  } else if (role == "client") {
    postern::perf::RunClient(plan);
  } else {
    std::fprintf(stderr,
                 "usage: msgrate server|client -p PORT | -u PATH  [-c COUNT] [-s SIZE] [-o]\n");
    return 2;
  }
  return 0;
}
