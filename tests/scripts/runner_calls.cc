// SPDX-License-Identifier: Apache-2.0
// runner_calls.cc - the socket calls of a script: arguments, results, errno, calls that block.
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "../unit/kit/known_stream.h"
#include "runner.h"

namespace postern::scripts {
namespace {

sockaddr_storage AddressFor(bool is_v6, bool is_remote, socklen_t& bytes) {
  sockaddr_storage out{};
  if (is_v6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&out);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(kServicePort);
    static const uint8_t kRemote[16] = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    if (is_remote) memcpy(v6->sin6_addr.s6_addr, kRemote, 16);
    bytes = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(kServicePort);
    if (is_remote) v4->sin_addr.s_addr = htonl(0xc0000201);  // 192.0.2.1
    bytes = sizeof(sockaddr_in);
  }
  return out;
}

const Value& Argument(const CallSpec& call, size_t number) {
  static const Value kNone;
  return number < call.arguments.size() ? call.arguments[number] : kNone;
}
int Number(const CallSpec& call, size_t number) {
  return static_cast<int>(Argument(call, number).number);
}

// The sum of the lengths in [{..., 100}, {"abc", 3}], and the text.
size_t IovecBytes(const Value& list, std::string& text) {
  size_t bytes = 0;
  for (const Value& item : list.items) {
    if (item.items.size() < 2) continue;
    bytes += static_cast<size_t>(item.items[1].number);
    text += item.items[0].text;
  }
  return bytes;
}

}  // namespace

int Runner::LiveFd(const Value& value) const {
  const auto found = fds_.find(static_cast<int>(value.number));
  return found == fds_.end() ? -1 : found->second;
}

Runner::Map* Runner::MapOf(int script_fd) {
  const auto found = fd_maps_.find(script_fd);
  return found == fd_maps_.end() ? nullptr : found->second;
}

// ---- results

bool Runner::Judge(const Event& event, long result, const std::string& wrong) {
  const CallSpec& call = event.call;
  if (!wrong.empty()) return Fail(event, call.name + "(): " + wrong);
  const bool gives_fd = call.name == "socket" || call.name == "accept" || call.name == "accept4";
  const int64_t want = call.result.number;
  if (gives_fd && want >= 0 && result >= 0) {
    const int script_fd = static_cast<int>(want);
    fds_[script_fd] = static_cast<int>(result);
    if (call.name == "socket") {
      fd_maps_.erase(script_fd);
      return true;
    }
    // The oldest connection that nobody has accepted.
    for (Map& map : maps_) {
      if (map.is_active || map.fd >= 0) continue;
      map.fd = script_fd;
      fd_maps_[script_fd] = &map;
      break;
    }
    return true;
  }
  const int64_t is = result < 0 ? -1 : result;
  if (call.result.kind != Value::Kind::kEllipsis && is != want)
    return Fail(
        event,
        call.name + "() = " + std::to_string(is) +
            (result < 0 ? std::string(" ") + strerrorname_np(static_cast<int>(-result)) : "") +
            ", expected " + std::to_string(want));
  if (call.error != 0 && result < 0 && -result != call.error)
    return Fail(event, call.name + "() failed with " + strerrorname_np(static_cast<int>(-result)) +
                           ", expected " + strerrorname_np(call.error));
  return true;
}

// A call that blocks is made again whenever something has happened.
bool Runner::TryPending() {
  if (!pending_) return error_.empty();
  std::string wrong;
  const long result = Make(*pending_, wrong);
  Collect();
  if (result == kBlocked) return true;
  const Event event = *std::exchange(pending_, std::nullopt);
  return InTime(event, event.time, event.call.end_us, 0, NowUs(), pending_since_us_,
                (event.call.name + "() returned").c_str()) &&
         Judge(event, result, wrong);
}

bool Runner::PlayCall(const Event& event) {
  if (pending_) return Fail(event, "a call is made while one blocks");
  std::string wrong;
  pending_since_us_ = NowUs();
  const long result = Make(event, wrong);
  Collect();
  if (result == kBlocked) {
    if (!event.call.blocks) return Fail(event, event.call.name + "() blocks");
    pending_ = event;
    return true;
  }
  if (event.call.blocks && !InTime(event, event.time, event.call.end_us, 0, NowUs(), event.time_us,
                                   (event.call.name + "() returned").c_str()))
    return false;
  return Judge(event, result, wrong);
}

// ---- calls

long Runner::Make(const Event& event, std::string& wrong) {
  const CallSpec& call = event.call;
  const std::string& name = call.name;
  if (name == "socket") {
    const Value& domain = Argument(call, 0);
    const int family = domain.kind == Value::Kind::kNumber ? static_cast<int>(domain.number)
                       : options_.is_v6                    ? AF_INET6
                                                           : AF_INET;
    return sut_.Socket(family, Number(call, 1), Number(call, 2));
  }
  if (name == "poll") return MakePoll(call, wrong);
  const int fd = LiveFd(Argument(call, 0));
  socklen_t bytes = 0;
  if (name == "bind") {
    const sockaddr_storage address = AddressFor(options_.is_v6, false, bytes);
    return sut_.Bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes);
  }
  if (name == "listen") return sut_.Listen(fd, Number(call, 1));
  if (name == "accept" || name == "accept4")
    return sut_.Accept(fd, nullptr, nullptr, name == "accept4" ? Number(call, 3) : 0);
  if (name == "connect") {
    const sockaddr_storage address = AddressFor(options_.is_v6, true, bytes);
    if (MapOf(Number(call, 0)) == nullptr) connecting_fd_ = Number(call, 0);
    return sut_.Connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes);
  }
  if (name == "shutdown") return sut_.Shutdown(fd, Number(call, 1));
  if (name == "close") {
    const long result = sut_.Close(fd);
    if (result == 0) fds_.erase(Number(call, 0));
    return result;
  }
  if (name == "fcntl") return sut_.Fcntl(fd, Number(call, 1), Argument(call, 2).number);
  if (name == "ioctl") {
    const Value& list = Argument(call, 2);
    const int want = list.items.empty() ? 0 : static_cast<int>(list.items[0].number);
    int is = want;
    const long result = sut_.Ioctl(fd, static_cast<unsigned long>(Argument(call, 1).number), &is);
    if (result == 0 && is != want)
      wrong = std::to_string(is) + ", expected " + std::to_string(want);
    return result;
  }
  if (name == "getsockopt" || name == "setsockopt") return MakeOption(call, fd, wrong);
  return MakeIo(call, fd, wrong);
}

// read, readv, recv, recvfrom, recvmsg and their counterparts.
long Runner::MakeIo(const CallSpec& call, int fd, std::string& wrong) {
  const std::string& name = call.name;
  std::string text = Argument(call, 1).text;
  size_t bytes = static_cast<size_t>(Argument(call, 2).number);
  int flags = 0;
  if (name == "readv" || name == "writev") {
    text.clear();
    bytes = IovecBytes(Argument(call, 1), text);
  } else if (name == "recvmsg" || name == "sendmsg") {
    const Value* iov = Argument(call, 1).Member("msg_iov");
    text.clear();
    bytes = iov == nullptr ? 0 : IovecBytes(*iov, text);
    flags = Number(call, 2);
  } else if (name != "read" && name != "write") {
    flags = Number(call, 3);
  }
  Map* map = MapOf(Number(call, 0));
  if (name == "read" || name == "readv" || name.rfind("recv", 0) == 0) {
    Bytes data(bytes);
    const long got = sut_.Recv(fd, data.data(), bytes, flags);
    if (got <= 0 || map == nullptr) return got;
    const size_t count = static_cast<size_t>(got);
    if (CheckStream(data.data(), count, kPayloadSeed, map->read + 1) != count)
      wrong = "other bytes than those that came in";
    if ((flags & MSG_PEEK) == 0) map->read += count;
    return got;
  }
  if (name != "write" && name != "writev" && name.rfind("send", 0) != 0) {
    wrong = "not known here";
    return -ENOSYS;
  }
  Bytes data(bytes);
  const size_t position = map == nullptr ? 0 : map->written.size();
  FillStream(data.data(), bytes, kPayloadSeed + 1, position);
  memcpy(data.data(), text.data(), std::min(bytes, text.size()));
  // A call that blocks may have sent a part: what is compared has to be there before.
  if (map != nullptr) map->written.insert(map->written.end(), data.begin(), data.end());
  const long sent = sut_.Send(fd, data.data(), bytes, flags);
  if (map != nullptr && sent == kBlocked) map->written.resize(position);
  if (map != nullptr && sent != kBlocked)
    map->written.resize(position + static_cast<size_t>(std::max(sent, 0L)));
  return sent;
}

long Runner::MakeOption(const CallSpec& call, int fd, std::string& wrong) {
  const int level = Number(call, 1), name = Number(call, 2);
  const Value& argument = Argument(call, 3);
  uint8_t buffer[256] = {};
  socklen_t bytes = sizeof(int);
  const Value* on = argument.Member("onoff");
  const Value* seconds = argument.Member("linger");
  if (on == nullptr) on = argument.Member("l_onoff");
  if (seconds == nullptr) seconds = argument.Member("l_linger");
  if (on != nullptr && seconds != nullptr) {
    const linger value = {static_cast<int>(on->number), static_cast<int>(seconds->number)};
    memcpy(buffer, &value, bytes = sizeof(value));
  } else if (argument.kind == Value::Kind::kString) {
    bytes = static_cast<socklen_t>(std::min(argument.text.size(), sizeof(buffer)));
    memcpy(buffer, argument.text.data(), bytes);
  } else if (!argument.items.empty()) {
    const int value = static_cast<int>(argument.items[0].number);
    memcpy(buffer, &value, sizeof(value));
  }
  if (call.name == "setsockopt") return sut_.SetSockOpt(fd, level, name, buffer, bytes);
  uint8_t is[256] = {};
  socklen_t is_bytes = sizeof(is);
  const long result = sut_.GetSockOpt(fd, level, name, is, &is_bytes);
  if (result == 0 && argument.kind != Value::Kind::kEllipsis && memcmp(is, buffer, bytes) != 0) {
    int number = 0;
    memcpy(&number, is, sizeof(number));
    wrong = "the value is " + std::to_string(number);
  }
  return result;
}

long Runner::MakePoll(const CallSpec& call, std::string& wrong) {
  std::vector<pollfd> fds;
  const Value& list = Argument(call, 0);
  for (const Value& item : list.items) {
    const Value *fd = item.Member("fd"), *events = item.Member("events");
    if (fd == nullptr || events == nullptr) continue;
    fds.push_back({LiveFd(*fd), static_cast<short>(events->number), 0});
  }
  const long ready = sut_.Poll(fds.data(), fds.size());
  const int timeout_ms = Number(call, 2);
  const bool is_over = timeout_ms >= 0 && NowUs() >= pending_since_us_ + int64_t{timeout_ms} * 1000;
  if (ready == 0 && !is_over && timeout_ms != 0) return kBlocked;
  for (size_t i = 0; i < fds.size(); i++) {
    const Value* revents = list.items[i].Member("revents");
    if (revents == nullptr || revents->number == fds[i].revents) continue;
    wrong = "revents " + std::to_string(fds[i].revents) + ", expected " +
            std::to_string(revents->number);
  }
  return ready;
}

}  // namespace postern::scripts
