// SPDX-License-Identifier: Apache-2.0
// sut.h - the system under test, as packet scripts see it: socket calls above, IP packets below,
// and a time that only moves when it is told to.
//
// Two drive it: our own runner, and the real packetdrill through tests/packetdrill/plugin.cc. Calls
// never block; where a program would, they return kBlocked and are made again, with the same
// arguments, after time or packets have moved. One thread at a time.
#pragma once
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>

#include "script_packet.h"

namespace postern::scripts {

// Below all errno values.
inline constexpr long kBlocked = -100'000;

// Results are those of the system calls, but -errno for errors, or kBlocked.
class Sut {
 public:
  virtual ~Sut() = default;

  // ---- time, in nanoseconds of CLOCK_MONOTONIC
  virtual uint64_t NowNs() const = 0;
  virtual uint64_t NextDeadlineNs() const = 0;  // UINT64_MAX: nothing will happen by itself
  // Timers that are due on the way are served, each at its own time.
  virtual void AdvanceTo(uint64_t ns) = 0;

  // ---- the wire
  virtual void PacketIn(const uint8_t* data, size_t bytes) = 0;
  virtual bool PacketOut(Bytes& packet, uint64_t& sent_ns) = 0;  // false: there is none

  // ---- the configuration: `name` as in /proc/sys, with dots. False: it means nothing here.
  virtual bool Sysctl(const std::string& name, const std::string& value) = 0;
  virtual void SetMtu(uint32_t mtu) = 0;
  virtual void UseRows() = 0;  // TCP hands over as many segments at once as it may

  // ---- socket calls
  virtual long Socket(int domain, int type, int protocol) = 0;
  virtual long Bind(int fd, const sockaddr* address, socklen_t bytes) = 0;
  virtual long Listen(int fd, int backlog) = 0;
  virtual long Accept(int fd, sockaddr* address, socklen_t* bytes, int flags) = 0;
  virtual long Connect(int fd, const sockaddr* address, socklen_t bytes) = 0;
  virtual long Recv(int fd, void* data, size_t bytes, int flags) = 0;
  virtual long Send(int fd, const void* data, size_t bytes, int flags) = 0;
  virtual long Shutdown(int fd, int how) = 0;
  virtual long Close(int fd) = 0;
  virtual long Fcntl(int fd, int command, long argument) = 0;
  virtual long Ioctl(int fd, unsigned long request, int* argument) = 0;
  virtual long GetSockOpt(int fd, int level, int name, void* value, socklen_t* bytes) = 0;
  virtual long SetSockOpt(int fd, int level, int name, const void* value, socklen_t bytes) = 0;
  // Fills revents; the number of descriptors that are ready. Never waits.
  virtual long Poll(pollfd* fds, nfds_t count) = 0;

  // The first thing that the system has found wrong with itself, or "".
  virtual std::string Problem() const = 0;
};

// TCP alone, with a thin socket layer of its own; see sut_tcp.cc.
std::unique_ptr<Sut> MakeTcpSut(uint64_t seed);

}  // namespace postern::scripts
