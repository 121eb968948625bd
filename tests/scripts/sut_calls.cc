// SPDX-License-Identifier: Apache-2.0
// sut_calls.cc - the socket calls of the scripts' system under test.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "sut_tcp.h"

#include <linux/sockios.h>

namespace postern::scripts {
namespace {

constexpr int kFirstFd = 3;
const char* const kOurV4 = "\xc0\xa8\x00\x01";  // 192.168.0.1, as packetdrill's default

Address AddressOf(const sockaddr* address, uint16_t& port) {
  Address out;
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    memcpy(&v6, address, sizeof(v6));
    port = ntohs(v6.sin6_port);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      memcpy(out.bytes.data(), v6.sin6_addr.s6_addr + 12, 4);
    } else {
      out.is_v6 = true;
      memcpy(out.bytes.data(), v6.sin6_addr.s6_addr, 16);
    }
    return out;
  }
  sockaddr_in v4;
  memcpy(&v4, address, sizeof(v4));
  port = ntohs(v4.sin_port);
  memcpy(out.bytes.data(), &v4.sin_addr, 4);
  return out;
}

void PutAddress(const Address& address, uint16_t port, int domain, sockaddr* out,
                socklen_t* bytes) {
  if (out == nullptr || bytes == nullptr) return;
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (domain == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    if (address.is_v6) {
      memcpy(v6->sin6_addr.s6_addr, address.bytes.data(), 16);
    } else {
      v6->sin6_addr.s6_addr[10] = v6->sin6_addr.s6_addr[11] = 0xff;
      memcpy(v6->sin6_addr.s6_addr + 12, address.bytes.data(), 4);
    }
    size = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    memcpy(&v4->sin_addr, address.bytes.data(), 4);
    size = sizeof(sockaddr_in);
  }
  memcpy(out, &storage, std::min(size, *bytes));
  *bytes = size;
}

// As the other end of the link is known to scripts: 192.168.0.1, fd3d:fa7b:d17d::1.
Address OurAddress(bool is_v6) {
  Address out;
  out.is_v6 = is_v6;
  if (!is_v6) {
    memcpy(out.bytes.data(), kOurV4, 4);
  } else {
    out.bytes = {0xfd, 0x3d, 0xfa, 0x7b, 0xd1, 0x7d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  }
  return out;
}

}  // namespace

SutSocket* TcpSut::At(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= sockets_.size()) return nullptr;
  SutSocket& socket = sockets_[static_cast<size_t>(fd)];
  return socket.used ? &socket : nullptr;
}

long TcpSut::Socket(int domain, int type, int protocol) {
  if (domain != AF_INET && domain != AF_INET6) return -EAFNOSUPPORT;
  if ((type & 0xf) != SOCK_STREAM || (protocol != 0 && protocol != IPPROTO_TCP))
    return -EPROTONOSUPPORT;
  size_t fd = kFirstFd;
  while (fd < sockets_.size() && sockets_[fd].used) fd++;
  if (sockets_.size() <= fd) sockets_.resize(fd + 1);
  sockets_[fd] = SutSocket{};
  sockets_[fd].used = true;
  sockets_[fd].domain = domain;
  sockets_[fd].nonblocking = (type & SOCK_NONBLOCK) != 0;
  sockets_[fd].settings.congestion = congestion_;
  return static_cast<long>(fd);
}

long TcpSut::Bind(int fd, const sockaddr* address, socklen_t) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (socket->port != 0) return -EINVAL;
  AddressOf(address, socket->port);
  if (socket->port == 0) socket->port = next_port_++;
  return 0;
}

long TcpSut::Listen(int fd, int backlog) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (socket->conn != nullptr) return -EINVAL;
  if (socket->port == 0) socket->port = next_port_++;
  socket->listens = true;
  socket->backlog = backlog;
  return 0;
}

long TcpSut::Accept(int fd, sockaddr* address, socklen_t* bytes, int flags) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (!socket->listens) return -EINVAL;
  if (socket->accepts.empty()) return socket->nonblocking ? -EAGAIN : kBlocked;
  SutConn* conn = socket->accepts.front();
  socket->accepts.pop_front();
  const int domain = socket->domain;
  const tcp::Settings settings = socket->settings;
  const long accepted = Socket(domain, SOCK_STREAM | (flags & SOCK_NONBLOCK), IPPROTO_TCP);
  SutSocket& mine = sockets_[static_cast<size_t>(accepted)];
  mine.conn = conn;
  mine.settings = settings;
  mine.port = conn->out.source_port;
  mine.error = conn->error;
  conn->fd = static_cast<int>(accepted);
  conn->listener = -1;
  PutAddress(conn->out.destination, conn->out.destination_port, domain, address, bytes);
  return accepted;
}

long TcpSut::Connect(int fd, const sockaddr* address, socklen_t) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (socket->listens) return -EISCONN;
  if (socket->conn == nullptr) {
    Flow out;
    out.destination = AddressOf(address, out.destination_port);
    out.source = OurAddress(out.destination.is_v6);
    if (socket->port == 0) socket->port = next_port_++;
    out.source_port = socket->port;
    SutConn& conn = NewConn(out, *socket);
    conn.fd = fd;
    socket->conn = &conn;
    socket->connecting = true;
    tcp::OpenArgs args = Args(out.destination.is_v6, tcp::Seq());
    args.ecn = ecn_ == 1;
    tcp::Open(conn, args, *this);
    Entered(conn);
    return socket->nonblocking ? -EINPROGRESS : kBlocked;
  }
  if (socket->error != 0) return -std::exchange(socket->error, 0);
  if (socket->conn->connected) return std::exchange(socket->connecting, false) ? 0 : -EISCONN;
  if (socket->conn->closed) return -ECONNABORTED;
  return socket->nonblocking ? -EALREADY : kBlocked;
}

long TcpSut::Recv(int fd, void* data, size_t bytes, int flags) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  SutConn* conn = socket->conn;
  if (conn == nullptr) return -ENOTCONN;
  const bool may_wait = !socket->nonblocking && (flags & MSG_DONTWAIT) == 0;
  const size_t there = conn->rx.size();
  const bool waits_for_all =
      (flags & MSG_WAITALL) != 0 && there < bytes && !conn->fin && !conn->closed && may_wait;
  if (there != 0 && !waits_for_all) {
    const size_t count = std::min(bytes, there);
    if (count != 0) conn->rx.Peek(conn->rx.begin(), static_cast<uint8_t*>(data), count);
    if ((flags & MSG_PEEK) == 0) {
      conn->rx.Drop(count);
      Push(*conn);
    }
    return static_cast<long>(count);
  }
  if (there == 0) {
    if (socket->error != 0) return -std::exchange(socket->error, 0);
    if (conn->fin || conn->closed || socket->read_shut) return 0;
    if (!conn->connected && !may_wait) return -EAGAIN;
  }
  return may_wait ? kBlocked : -EAGAIN;
}

long TcpSut::Send(int fd, const void* data, size_t bytes, int flags) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  SutConn* conn = socket->conn;
  if (conn == nullptr) return -EPIPE;
  if (socket->error != 0) return -std::exchange(socket->error, 0);
  if (conn->tx_ended || conn->closed) return -EPIPE;
  const bool may_wait = !socket->nonblocking && (flags & MSG_DONTWAIT) == 0;
  if (!conn->connected) return may_wait ? kBlocked : -EAGAIN;
  const uint8_t* from = static_cast<const uint8_t*>(data);
  const size_t put = conn->tx.Put(from + socket->sent, bytes - socket->sent);
  socket->sent += put;
  if ((flags & MSG_MORE) != 0) {
    conn->flags |= tcp::kMoreOut;
    conn->more_end = conn->tx.begin() + conn->tx.size();
  }
  if (put != 0 && (flags & MSG_EOR) != 0 && socket->sent == bytes)
    tcp::MarkRecord(*conn, static_cast<uint32_t>(conn->tx.size()));
  if (put != 0 && (flags & MSG_OOB) != 0)
    tcp::Urgent(*conn, static_cast<uint32_t>(conn->tx.size()), *this);
  Push(*conn);
  if (socket->sent < bytes && may_wait) return kBlocked;
  const size_t sent = std::exchange(socket->sent, 0);
  return sent != 0 || bytes == 0 ? static_cast<long>(sent) : -EAGAIN;
}

long TcpSut::Shutdown(int fd, int how) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  SutConn* conn = socket->conn;
  if (conn == nullptr || !conn->connected || conn->closed) return -ENOTCONN;
  if (how == SHUT_RD || how == SHUT_RDWR) socket->read_shut = true;
  if ((how == SHUT_WR || how == SHUT_RDWR) && !conn->tx_ended) {
    conn->tx_ended = true;
    Push(*conn);
  }
  return 0;
}

// RFC 2525, 2.17: data that nobody will read are answered by a reset. SO_LINGER of 0: a reset, too.
void TcpSut::CloseConn(SutConn& conn, const SutSocket& socket) {
  conn.fd = -1;
  if (conn.closed) return;
  const bool is_abrupt = socket.lingers.l_onoff != 0 && socket.lingers.l_linger == 0;
  if (is_abrupt || conn.rx.size() != 0) {
    tcp::Abort(conn, *this);
    Entered(conn);
    return;
  }
  conn.tx_ended = true;
  conn.unread_gone = true;
  tcp::Closed(conn, *this);
  Entered(conn);
  Push(conn);
}

long TcpSut::Close(int fd) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (socket->conn != nullptr) CloseConn(*socket->conn, *socket);
  if (socket->listens) {
    for (const auto& conn : conns_) {
      if (conn->listener != fd) continue;
      conn->listener = -1;
      if (conn->closed) continue;
      tcp::Abort(*conn, *this);
      Entered(*conn);
    }
  }
  *socket = SutSocket{};
  return 0;
}

long TcpSut::Fcntl(int fd, int command, long argument) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  if (command == F_GETFL) return O_RDWR | (socket->nonblocking ? O_NONBLOCK : 0);
  if (command != F_SETFL) return -EINVAL;
  socket->nonblocking = (argument & O_NONBLOCK) != 0;
  return 0;
}

long TcpSut::Ioctl(int fd, unsigned long request, int* argument) {
  SutSocket* socket = At(fd);
  if (socket == nullptr) return -EBADF;
  const SutConn* conn = socket->conn;
  switch (request) {
    case SIOCINQ:
      *argument = conn == nullptr ? 0 : static_cast<int>(conn->rx.size());
      return 0;
    case SIOCOUTQ:
      *argument = conn == nullptr ? 0 : static_cast<int>(conn->tx.size());
      return 0;
    case SIOCOUTQNSD:
      *argument =
          conn == nullptr ? 0 : static_cast<int>(conn->tx.size()) - (conn->snd_nxt - conn->snd_una);
      return 0;
    case FIONBIO:
      socket->nonblocking = *argument != 0;
      return 0;
    default:
      return -EINVAL;
  }
}

short TcpSut::Ready(const SutSocket& socket) const {
  if (socket.listens) return socket.accepts.empty() ? short{0} : short{POLLIN | POLLRDNORM};
  const SutConn* conn = socket.conn;
  if (conn == nullptr) return POLLOUT | POLLWRNORM | POLLHUP;
  int events = 0;
  if (socket.error != 0) events |= POLLERR;
  if (conn->closed || (conn->fin && conn->tx_ended)) events |= POLLHUP;
  if (conn->fin || socket.read_shut || conn->closed) events |= POLLIN | POLLRDNORM | POLLRDHUP;
  if (conn->rx.size() != 0) events |= POLLIN | POLLRDNORM;
  // Linux: a third of the buffer has to be free.
  if (conn->connected && (conn->tx.room() * 3 >= conn->tx.capacity() || conn->tx_ended))
    events |= POLLOUT | POLLWRNORM;
  if (conn->closed) events |= POLLOUT | POLLWRNORM;
  return static_cast<short>(events);
}

long TcpSut::Poll(pollfd* fds, nfds_t count) {
  long ready = 0;
  for (nfds_t i = 0; i < count; i++) {
    const SutSocket* socket = At(fds[i].fd);
    const int always = POLLERR | POLLHUP;
    fds[i].revents = socket == nullptr
                         ? short{POLLNVAL}
                         : static_cast<short>(Ready(*socket) & (fds[i].events | always));
    ready += fds[i].revents != 0;
  }
  return ready;
}

}  // namespace postern::scripts
