// SPDX-License-Identifier: Apache-2.0
// sut_options.cc - the socket options of the scripts' system under test.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "sut_tcp.h"
#include "tcp/info.h"

namespace postern::scripts {
namespace {

// Options of IPPROTO_TCP that are a flag of the connection's settings.
uint32_t FlagOf(int name) {
  switch (name) {
    case TCP_NODELAY:
      return tcp::kSetNoDelay;
    case TCP_CORK:
      return tcp::kSetCork;
    default:
      return 0;
  }
}

// ... and those that are a number there.
uint32_t* NumberOf(int name, tcp::Settings& settings) {
  switch (name) {
    case TCP_KEEPIDLE:
      return &settings.keepalive_idle_s;
    case TCP_KEEPINTVL:
      return &settings.keepalive_interval_s;
    case TCP_KEEPCNT:
      return &settings.keepalive_probes;
    case TCP_USER_TIMEOUT:
      return &settings.user_timeout_ms;
    case TCP_MAXSEG:
      return &settings.maxseg;
    case TCP_SYNCNT:
      return &settings.syn_retries;
    case TCP_LINGER2:
      return &settings.fin_wait2_s;
    case TCP_DEFER_ACCEPT:
      return &settings.defer_accept_s;
    case TCP_WINDOW_CLAMP:
      return &settings.window_clamp;
    case TCP_NOTSENT_LOWAT:
      return &settings.notsent_lowat;
    default:
      return nullptr;
  }
}

}  // namespace

long TcpSut::IntOption(int level, int name, SutSocket& socket, int& value) {
  if (level == SOL_SOCKET) {
    switch (name) {
      case SO_ERROR:
        value = std::exchange(socket.error, 0);
        return 0;
      case SO_TYPE:
        value = SOCK_STREAM;
        return 0;
      case SO_KEEPALIVE:
        value = (socket.settings.flags & tcp::kSetKeepalive) != 0;
        return 0;
      case SO_SNDBUF:
        value = socket.send_buffer;
        return 0;
      case SO_RCVBUF:
        value = socket.receive_buffer;
        return 0;
      default:
        return -ENOPROTOOPT;
    }
  }
  if (level != IPPROTO_TCP) return -ENOPROTOOPT;
  if (name == TCP_MAXSEG && socket.conn != nullptr && socket.conn->connected) {
    value = static_cast<int>(socket.conn->mss_bytes);
    return 0;
  }
  if (const uint32_t flag = FlagOf(name); flag != 0) {
    value = (socket.settings.flags & flag) != 0;
    return 0;
  }
  const uint32_t* number = NumberOf(name, socket.settings);
  if (number == nullptr) return -ENOPROTOOPT;
  value = static_cast<int>(*number);
  return 0;
}

long TcpSut::GetSockOpt(int fd, int level, int name, void* value, socklen_t* bytes) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (level == SOL_SOCKET && name == SO_LINGER) {
    memcpy(value, &socket->lingers, std::min<size_t>(*bytes, sizeof(linger)));
    *bytes = sizeof(linger);
    return 0;
  }
  if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
    const char* congestion =
        tcp::CongestionName(static_cast<tcp::CongestionKind>(socket->settings.congestion));
    *bytes = static_cast<socklen_t>(std::min<size_t>(*bytes, strlen(congestion) + 1));
    memcpy(value, congestion, *bytes);
    return 0;
  }
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    const SutConn* conn = socket->conn;
    if (conn == nullptr) return -ENOTCONN;
    tcp::Info info;
    constexpr uint32_t kHead4 = 40, kHead6 = 60;
    const uint32_t unsent = static_cast<uint32_t>(conn->tx.size()) -
                            static_cast<uint32_t>(conn->tcp::Tcb::tx_head == tcp::kNone
                                                      ? 0
                                                      : conn->snd_nxt - conn->snd_una);
    tcp::FillInfo(*conn, now_ns, conn->out.source.is_v6 ? kHead6 : kHead4, unsent, info);
    *bytes = static_cast<socklen_t>(std::min<size_t>(*bytes, sizeof(info.bytes)));
    memcpy(value, &info, *bytes);
    return 0;
  }
  int number = 0;
  const long result = IntOption(level, name, *socket, number);
  if (result < 0) return result;
  *bytes = static_cast<socklen_t>(std::min<size_t>(*bytes, sizeof(number)));
  memcpy(value, &number, *bytes);
  return 0;
}

long TcpSut::SetIntOption(int level, int name, SutSocket& socket, int value) {
  const auto set_flag = [&](uint32_t flag) {
    socket.settings.flags =
        value != 0 ? socket.settings.flags | flag : socket.settings.flags & ~flag;
    return 0;
  };
  if (level == SOL_SOCKET) {
    switch (name) {
      case SO_REUSEADDR:
      case SO_REUSEPORT:
        return 0;
      case SO_KEEPALIVE:
        return set_flag(tcp::kSetKeepalive);
      case SO_SNDBUF:
      case SO_SNDBUFFORCE:
        socket.send_buffer = std::max(value, 2304) * 2;  // as Linux, with its floor
        if (socket.conn != nullptr && !socket.conn->closed)
          socket.conn->tx.Resize(static_cast<size_t>(socket.send_buffer));
        return 0;
      case SO_RCVBUF:
      case SO_RCVBUFFORCE:
        socket.receive_buffer = std::max(value, 1152) * 2;
        if (socket.conn != nullptr && !socket.conn->closed)
          socket.conn->rx.Resize(static_cast<size_t>(socket.receive_buffer));
        return 0;
      default:
        return -ENOPROTOOPT;
    }
  }
  if (level == IPPROTO_IP || level == IPPROTO_IPV6) return 0;
  if (level != IPPROTO_TCP) return -ENOPROTOOPT;
  if (name == TCP_QUICKACK) {
    if (socket.conn != nullptr && !socket.conn->closed)
      tcp::SetAckMode(*socket.conn, value != 0 ? tcp::AckMode::kQuick : tcp::AckMode::kDelayed,
                      *this);
    return 0;
  }
  if (const uint32_t flag = FlagOf(name); flag != 0) return set_flag(flag);
  uint32_t* number = NumberOf(name, socket.settings);
  if (number == nullptr) return -ENOPROTOOPT;
  if (value < 0 && name != TCP_LINGER2) return -EINVAL;
  *number = value < 0 ? tcp::kNoFinWait2 : static_cast<uint32_t>(value);
  return 0;
}

long TcpSut::SetSockOpt(int fd, int level, int name, const void* value, socklen_t bytes) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (level == SOL_SOCKET && name == SO_LINGER) {
    if (bytes < sizeof(linger)) return -EINVAL;
    memcpy(&socket->lingers, value, sizeof(linger));
    return 0;
  }
  if (level == IPPROTO_TCP && name == TCP_CONGESTION) {
    tcp::CongestionKind kind{};
    if (!tcp::CongestionByName(static_cast<const char*>(value), bytes, kind)) return -ENOENT;
    socket->settings.congestion = static_cast<uint32_t>(kind);
    if (socket->conn != nullptr && !socket->conn->closed)
      tcp::CongestionSetKind(socket->conn->cc, kind);
    return 0;
  }
  if (bytes < sizeof(int)) return -EINVAL;
  int number = 0;
  memcpy(&number, value, sizeof(number));
  const long result = SetIntOption(level, name, *socket, number);
  if (result < 0 || socket->conn == nullptr) return result;
  socket->conn->settings = socket->settings;
  if (level == IPPROTO_TCP && name == TCP_NODELAY && number != 0) tcp::Flush(*socket->conn);
  Push(*socket->conn);
  return result;
}

}  // namespace postern::scripts
