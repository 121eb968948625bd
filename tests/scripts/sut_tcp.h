// SPDX-License-Identifier: Apache-2.0
// sut_tcp.h - lib/tcp with a thin socket layer, in virtual time: what the scripts drive until the
// engine takes its place.
//
// The socket layer is only as thick as scripts need: it decides nothing about segments. Streams,
// packets and tables are those of the simulator's host, with its checks after each entry into TCP.
#pragma once
#include <deque>
#include <memory>

#include "../sim/stream_host.h"
#include "../unit/kit/known_stream.h"
#include "sut.h"

namespace postern::scripts {

struct SutConn : sim::Conn {
  Flow out;     // as its segments have it
  int fd = -1;  // -1: not accepted yet, or closed by the program
  int listener = -1;
  bool is_reported = false;  // the error was returned once
  uint64_t more_end = 0;     // position in `tx` behind the last write with MSG_MORE
};

struct SutSocket {
  bool used = false, listens = false, nonblocking = false;
  bool connecting = false, read_shut = false;
  int domain = AF_INET;
  int backlog = 0;
  uint16_t port = 0;
  int error = 0;                            // for SO_ERROR
  int send_buffer = 0, receive_buffer = 0;  // as set; 0: default
  linger lingers = {};
  tcp::Settings settings = {};
  SutConn* conn = nullptr;
  std::deque<SutConn*> accepts;
  size_t sent = 0;  // by a send that blocks
};

class TcpSut final : public Sut, private sim::StreamHost {
 public:
  explicit TcpSut(uint64_t seed);

  uint64_t NowNs() const override { return now_ns; }
  uint64_t NextDeadlineNs() const override;
  void AdvanceTo(uint64_t ns) override;
  void PacketIn(const uint8_t* data, size_t bytes) override;
  bool PacketOut(Bytes& packet, uint64_t& sent_ns) override;
  bool Sysctl(const std::string& name, const std::string& value) override;
  void SetMtu(uint32_t mtu) override { mtu_ = mtu; }
  void UseRows() override { row_max_ = tcp::kRowMax; }
  std::string Problem() const override { return problem(); }

  long Socket(int domain, int type, int protocol) override;
  long Bind(int fd, const sockaddr* address, socklen_t bytes) override;
  long Listen(int fd, int backlog) override;
  long Accept(int fd, sockaddr* address, socklen_t* bytes, int flags) override;
  long Connect(int fd, const sockaddr* address, socklen_t bytes) override;
  long Recv(int fd, void* data, size_t bytes, int flags) override;
  long Send(int fd, const void* data, size_t bytes, int flags) override;
  long Shutdown(int fd, int how) override;
  long Close(int fd) override;
  long Fcntl(int fd, int command, long argument) override;
  long Ioctl(int fd, unsigned long request, int* argument) override;
  long GetSockOpt(int fd, int level, int name, void* value, socklen_t* bytes) override;
  long SetSockOpt(int fd, int level, int name, const void* value, socklen_t bytes) override;
  long Poll(pollfd* fds, nfds_t count) override;

 private:
  // ---- tcp::Host
  uint64_t Random() override { return random_.Next(); }
  bool Transmit(tcp::Tcb& tcb, const tcp::SegmentOut& segment) override;
  bool MoreFollows(tcp::Tcb& tcb, uint32_t ahead) override {
    const SutConn& conn = static_cast<const SutConn&>(tcb);
    return conn.tx.begin() + ahead == conn.more_end;
  }
  void OnReport(sim::Conn& conn, tcp::Event event, int error) override;

  SutSocket* At(int fd);
  SutConn* Find(const Flow& out);
  SutConn& NewConn(const Flow& out, const SutSocket& socket);
  tcp::OpenArgs Args(bool is_v6, tcp::Seq iss_from);
  void TcpIn(TcpPacket& packet);
  void IcmpIn(const IcmpPacket& packet);
  // A segment of no connection. True: a listener has taken or dropped it.
  bool AtListenerIn(const TcpPacket& packet, const tcp::SegmentIn& segment, tcp::Seq iss_from);
  void Queue(const Flow& out, const tcp::SegmentOut& segment, Bytes payload);
  void Entered(SutConn& conn);  // after each entry into TCP
  void Push(SutConn& conn);     // Output
  short Ready(const SutSocket& socket) const;
  long IntOption(int level, int name, SutSocket& socket, int& value);
  long SetIntOption(int level, int name, SutSocket& socket, int value);
  void CloseConn(SutConn& conn, const SutSocket& socket);

  TestRandom random_;
  uint32_t mtu_ = 1500;
  tcp::Sysctls sysctls_;
  int ecn_ = 2;  // as net.ipv4.tcp_ecn: 0 never, 1 ask, 2 agree
  uint32_t receive_max_ = 6 << 20, send_max_ = 4 << 20;
  uint32_t congestion_ = 0;
  uint16_t next_port_ = 40'000;
  std::deque<SutSocket> sockets_;
  std::vector<std::unique_ptr<SutConn>> conns_;
  struct Out {
    Bytes bytes;
    uint64_t at_ns;
  };
  std::deque<Out> out_;
};

}  // namespace postern::scripts
