// selftest_io.cc - see selftest_io.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_io.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "abi/syn_option.h"

namespace postern::ctl_command::selftest {
namespace {

constexpr size_t kChunkBytes = 16 * 1024;  // fits every buffer: written, then awaited

bool Readable(int fd, uint64_t until_ms) {
  for (;;) {
    const uint64_t now = NowMs();
    pollfd p{fd, POLLIN, 0};
    const int r = poll(&p, 1, static_cast<int>(until_ms > now ? until_ms - now : 0));
    if (r > 0) return true;
    if (r == 0 && NowMs() >= until_ms) return false;
  }
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

void Fail(const std::string& what) { throw std::runtime_error(what + ": " + strerror(errno)); }

uint64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

sockaddr_in Address(const std::string& ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, ip.c_str(), &address.sin_addr) != 1)
    throw std::runtime_error(ip + " is no address");
  return address;
}

std::string NameOf(const sockaddr_in& address) {
  char ip[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &address.sin_addr, ip, sizeof(ip));
  return std::string(ip) + ":" + std::to_string(ntohs(address.sin_port));
}

bool Wire::Send(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

Got Wire::Read(Bytes& message, unsigned timeout_ms) {
  const uint64_t until = NowMs() + timeout_ms;
  size_t want = kClcPeekBytes;
  message.clear();
  while (message.size() < want) {
    if (!Readable(fd_.get(), until)) return Got::kTimeout;
    const size_t had = message.size();
    message.resize(want);
    const ssize_t n = recv(fd_.get(), message.data() + had, want - had, 0);
    message.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return Got::kClosed;
    if (n < 0) return Got::kReset;
    if (message.size() != kClcPeekBytes || want != kClcPeekBytes) continue;
    ClcHead head;
    if (!ClcPeek(std::span<const uint8_t, kClcPeekBytes>(message.data(), kClcPeekBytes), head).ok())
      return Got::kNoClc;
    want = head.len_bytes;
  }
  return Got::kMessage;
}

Got Wire::WaitEnd(unsigned timeout_ms) {
  uint8_t byte = 0;
  if (!Readable(fd_.get(), NowMs() + timeout_ms)) return Got::kTimeout;
  const ssize_t n = recv(fd_.get(), &byte, 1, 0);
  return n == 0 ? Got::kClosed : n < 0 ? Got::kReset : Got::kNoClc;
}

void Wire::Half() { (void)shutdown(fd_.get(), SHUT_WR); }

void Wire::HoldBack() {
  const int on = 1;
  (void)setsockopt(fd_.get(), IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

void Wire::Reset() {
  const linger reset{1, 0};
  (void)setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  Close();
}

bool Wire::Exchange() {
  Bytes out(kChunkBytes), in(kChunkBytes);
  for (size_t pos = 0; pos < kDataBytes; pos += kChunkBytes) {
    for (size_t i = 0; i < kChunkBytes; i++) out[i] = PatternAt(pos + i);
    if (!Send(out)) return false;
    for (size_t have = 0; have < kChunkBytes;) {
      if (!Readable(fd_.get(), NowMs() + kPatienceMs)) return false;
      const ssize_t n = recv(fd_.get(), in.data() + have, kChunkBytes - have, 0);
      if (n <= 0) return false;
      have += static_cast<size_t>(n);
    }
    if (in != out) return false;
  }
  return true;
}

std::string Wire::local() const {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  (void)getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return NameOf(address);
}

uint8_t PatternAt(size_t pos) { return static_cast<uint8_t>(pos * 7 + pos / 251 * 13); }

Fd Connect(Fd socket, const sockaddr_in& to) {
  if (!socket.ok() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0)
    Fail("connect to " + NameOf(to));
  return socket;
}

Fd Listen(Fd socket, const sockaddr_in& at) {
  const int on = 1;
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0)
    Fail("listen on " + NameOf(at));
  return socket;
}

Fd Accept(int listener, unsigned timeout_ms) {
  if (!Readable(listener, NowMs() + timeout_ms)) return Fd();
  return Fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
}

void MarkSocket(int fd) {
  const int on = 1;
  if (setsockopt(fd, IPPROTO_TCP, PSTN_TCP_SMC, &on, sizeof(on)) != 0) Fail("PSTN_TCP_SMC");
}

bool Exchanged(int fd) {
  int bits = 0;
  socklen_t size = sizeof(bits);
  return getsockopt(fd, IPPROTO_TCP, PSTN_TCP_SMC, &bits, &size) == 0 &&
         (bits & PSTN_TCP_SMC_EXCHANGED) != 0;
}

namespace {

template <typename Value, size_t Encoder(const Value&, std::span<uint8_t>)>
Bytes EncodeBy(const Value& value) {
  Bytes bytes(kClcMessageBytesMax);
  bytes.resize(Encoder(value, bytes));
  if (bytes.empty()) throw std::runtime_error("a message that has no encoding");
  return bytes;
}

}  // namespace

Bytes Encode(const ClcProposal& value) { return EncodeBy<ClcProposal, ClcEncodeProposal>(value); }
Bytes Encode(const ClcAccept& value) { return EncodeBy<ClcAccept, ClcEncodeAccept>(value); }
Bytes Encode(const ClcDecline& value) { return EncodeBy<ClcDecline, ClcEncodeDecline>(value); }

std::string CodeText(uint32_t diagnosis) {
  char text[16];
  snprintf(text, sizeof(text), "%08x", diagnosis);
  return text;
}

}  // namespace postern::ctl_command::selftest
