// selftest_io.h - sockets, messages and data of the self-test.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <netinet/in.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "wire/clc/clc.h"

namespace postern::ctl_command::selftest {

using Bytes = std::vector<uint8_t>;

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& from) noexcept : fd_(std::exchange(from.fd_, -1)) {}
  Fd& operator=(Fd&& from) noexcept {
    std::swap(fd_, from.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

// errno's text behind `what`.
[[noreturn]] void Fail(const std::string& what);
uint64_t NowMs();

sockaddr_in Address(const std::string& ip, uint16_t port);
std::string NameOf(const sockaddr_in& address);

enum class Mark : uint8_t { kPlain, kMarked };

enum class Got : uint8_t { kMessage, kClosed, kReset, kTimeout, kNoClc };

// One TCP connection, for a test that speaks CLC on it and then sends data.
class Wire {
 public:
  Wire() = default;
  explicit Wire(Fd fd) : fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  bool ok() const { return fd_.ok(); }
  // False: it is gone.
  bool Send(std::span<const uint8_t> bytes);
  // Exactly one message, never a byte more.
  Got Read(Bytes& message, unsigned timeout_ms);
  Got WaitEnd(unsigned timeout_ms);
  // FIN and RST. Half(): only our direction is closed.
  void Close() { fd_ = Fd(); }
  void Half();
  // What is sent from now on goes out together with the FIN.
  void HoldBack();
  void Reset();
  // Data to a peer that echoes; false: not all of it came back as it was.
  bool Exchange();
  std::string local() const;

 private:
  Fd fd_;
};

// Bytes that tell where they belong.
uint8_t PatternAt(size_t pos);
constexpr size_t kDataBytes = 256 * 1024;
constexpr unsigned kPatienceMs = 20'000;  // for what comes at once, on a loaded machine

Fd Connect(Fd socket, const sockaddr_in& to);
Fd Listen(Fd socket, const sockaddr_in& at);
Fd Accept(int listener, unsigned timeout_ms);  // not ok(): no client came
void MarkSocket(int fd);
bool Exchanged(int fd);

Bytes Encode(const ClcProposal& value);
Bytes Encode(const ClcAccept& value);
Bytes Encode(const ClcDecline& value);
std::string CodeText(uint32_t diagnosis);

}  // namespace postern::ctl_command::selftest
