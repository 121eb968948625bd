// upstream.cc - see upstream.h.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "../directory/listener_check.h"
#include "../kit/log.h"
#include "../kit/proc.h"
#include "../registry/slot_copy.h"
#include "../routes/addresses.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kUpstreamRetryMs = 1000;
// So long the listener of another network namespace is found in the directory: then one connection
// goes by TCP again, so that a change of routes or translation rules is seen.
constexpr auto kLearntFor = std::chrono::seconds(5);
constexpr uint32_t kForgetMs = 1000;
constexpr uint32_t kTellAgainMs = 1000;
// So much may wait for the broker: each process asks one thing at a time, but there may be many.
// What is refused then is done without the broker. The line is kept.
constexpr size_t kWaitingMost = kOutQueueMax / 2;
// Of what has to arrive: by default the broker keeps half as many tokens of a user, and a process
// has one question under way.
constexpr size_t kKeptMost = 8192;

// What gives back something of the broker's, or is asked once. Tokens are Release()'s.
bool HasToArrive(const ctl::Msg& message) {
  if (message.type == ctl::Type::kSeek) return message.a == 0;
  return message.type == ctl::Type::kFilter && message.a != ctl::kFilterAdd;
}

}  // namespace

Upstream::Upstream(event_base* base, std::string socket_path, Directory& directory,
                   Registry& registry)
    : base_(base),
      path_(std::move(socket_path)),
      directory_(directory),
      registry_(registry),
      asks_(base, 0),
      teller_(base, directory, registry, asks_),
      retry_(base, -1, 0, [this] { Connect(); }),
      forget_(base, -1, 0, [this] { ForgetLearnt(); }),
      again_(base, -1, 0, [this] { TellAgain(); }) {
  teller_.on_unsaid = [this] {
    if (joined_ && on_join) on_join();
  };
  // Clients are every sharer's alike, so the others' are to be known.
  teller_.on_shared = [this](uint16_t port) { Seek(port, [] {}); };
  Connect();
}

void Upstream::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.empty() || path_.size() >= sizeof(address.sun_path)) return Settle();
  memcpy(address.sun_path, path_.data(), path_.size());
  retry_.AddMs(kUpstreamRetryMs);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok() || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return Settle();
  retry_.Del();
  ucred peer{};
  socklen_t size = sizeof(peer);
  (void)getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
  line_ = std::make_unique<Client>(
      base_, std::move(fd), peer,
      [this](Client&, const ctl::Msg& m, UniqueFd with) { OnMessage(m, std::move(with)); },
      [this](Client&) { OnGone(); });
  line_->on_drained = [this] {
    SayKept();
    teller_.Pump();
  };
  ctl::Msg message;
  message.type = ctl::Type::kJoin;
  message.a = seeks_all_ ? 0 : ctl::kJoinSeeks;
  asks_.Ask(*line_, message, {}, [this](int status, const ctl::Msg& answer, UniqueFd) {
    if (status == 0) return Join(answer.a == ctl::kJoinSeeks);
    Warn("the broker does not take us: %s", strerror(status));
    Settle();
  });
}

// seeks: the broker tells us of others' listeners when we ask, and not of all.
void Upstream::Join(bool seeks) {
  joined_ = true;
  Inform("joined the broker at %s", path_.c_str());
  directory_.SetSeeks(seeks);
  teller_.Begin(*line_);
  TellAddresses();
  if (seeks_all_) SeekAll();
  if (on_join) on_join();
}

// The broker had no descriptor left for something of this.
void Upstream::TellAgain() {
  teller_.AliveAgain();
  TellAddresses();
}

void Upstream::OnGone() {
  joined_ = false;
  directory_.SetSeeks(false);
  teller_.End();
  asks_.OnGone(*line_);
  line_.reset();
  for (const Kept& kept : std::exchange(kept_, {})) {
    if (kept.done) kept.done(EPIPE, {}, {});
  }
  Inform("the broker is gone");
  directory_.WithdrawIf([](const Listener& l) { return l.foreign; });
  learnt_.clear();
  if (on_host) on_host({});
  Settle();
  retry_.AddMs(kUpstreamRetryMs / 10);  // it may be starting again
}

void Upstream::Settle() {
  if (std::exchange(settled_, true)) return;
  if (on_settled) on_settled();
}

void Upstream::OnMessage(const ctl::Msg& message, UniqueFd fd) {
  if (asks_.OnAnswer(*line_, message, fd)) return;
  if (message.type == ctl::Type::kAlive || message.type == ctl::Type::kAddresses) {
    if (!again_.pending()) again_.AddMs(kTellAgainMs);
    return;
  }
  // What the host is like comes again to a member that comes again.
  if (line_->lost_fd() && message.type == ctl::Type::kHost) return line_->Break();
  if (line_->lost_fd()) return line_->Reply(message, EMFILE);
  if (message.type == ctl::Type::kHost) return TakeHost(fd);
  if (message.type == ctl::Type::kVi) {
    if (on_vi_free) on_vi_free();
    return;
  }
  int error = -ENOSYS;
  if (message.type == ctl::Type::kListener) error = TakeListener(message);
  if (message.type == ctl::Type::kGone)
    error = directory_.Withdraw(message.uuid, message.a, message.b) ? 0 : -ENOENT;
  if (message.type == ctl::Type::kLink) error = registry_.TakeRemote(message, std::move(fd));
  if (message.type == ctl::Type::kLinkEnd) return registry_.RemoteEnded(message.id, message.a);
  line_->Reply(message, -error);
}

int Upstream::TakeListener(const ctl::Msg& message) {
  Listener listener = ListenerIn(message);
  if (registry_.Find(message.uuid) != nullptr) return -EEXIST;
  listener.netns_ino = OwnNetnsIno();
  listener.foreign = true;
  if (listener.learnt) {
    if (!reached_.Take(listener.stack, listener.ep_idx, listener.ep_gen, listener.local))
      return -EPERM;
    if (!SourceTowards(listener.local, listener.source)) return -ENETUNREACH;
    learnt_[ListenerKeyOf(listener)] = Clock::now() + kLearntFor;
    if (!forget_.pending()) forget_.AddMs(kForgetMs);
  }
  // It may have ended since it was offered, and its port be another one's here.
  if (!listener.learnt && StillListens(listener) == -ENOENT) return -ENOENT;
  return directory_.Publish(listener);
}

void Upstream::ForgetLearnt() {
  const auto now = Clock::now();
  directory_.WithdrawIf([&](const Listener& l) {
    const auto known = learnt_.find(ListenerKeyOf(l));
    return l.learnt && (known == learnt_.end() || known->second <= now);
  });
  for (auto it = learnt_.begin(); it != learnt_.end();)
    it = it->second <= now ? learnt_.erase(it) : std::next(it);
  if (!learnt_.empty()) forget_.AddMs(kForgetMs);
}

void Upstream::NoteReached(const ctl::Msg& listener, const pstn_addr& where) {
  reached_.Note(listener.uuid, listener.a, listener.b, where);
}

void Upstream::TakeHost(const UniqueFd& fd) {
  pstn_host host{};
  if (pread(fd.get(), &host, sizeof(host), 0) != sizeof(host)) return;
  host.addr_count = std::min(host.addr_count, PSTN_DIR_ADDRS);
  host.ueid_count = std::min(host.ueid_count, PSTN_HOST_UEIDS);
  if (on_host) on_host(host);
  Settle();
}

// The broker asks the kernel for them, through a socket of this network namespace.
void Upstream::TellAddresses() {
  if (!joined_) return;
  UniqueFd route(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!route.ok()) return;
  ctl::Msg message;
  message.type = ctl::Type::kAddresses;
  line_->Send(message, Share(std::move(route)));
}

bool Upstream::IsLong() const { return queued() >= kWaitingMost; }

void Upstream::Ask(const ctl::Msg& message, Asks::Done done, SharedFd with) {
  if (!joined_) return done(ENOTCONN, {}, {});
  ctl::Msg question = message;
  SayWhose(question, message.uuid);
  if (!IsLong()) return asks_.Ask(*line_, question, std::move(with), std::move(done));
  if (!HasToArrive(message)) return done(EAGAIN, {}, {});
  Keep(question, std::move(done));
}

// More than that is no honest program's. The broker forgets what it had for a line that ends.
void Upstream::Keep(const ctl::Msg& message, Asks::Done done) {
  if (kept_.size() >= kKeptMost) line_->Break();
  if (!line_->broken()) return kept_.push_back({message, std::move(done)});
  if (done) done(EPIPE, {}, {});
}

void Upstream::SayKept() {
  while (!kept_.empty() && !line_->broken() && line_->queued() < kWaitingMost) {
    const Kept next = std::move(kept_.front());
    kept_.pop_front();
    if (!next.done) line_->Send(next.message);
    if (next.done) asks_.Ask(*line_, next.message, {}, next.done);
  }
}

void Upstream::SayWhose(ctl::Msg& message, const pstn_uuid& stack) const {
  Teller::SayWhose(registry_, message, stack);
}

void Upstream::Release(uint64_t token) {
  ctl::Msg message;
  message.type = ctl::Type::kRelease;
  message.cookie = token;
  if (!joined_) return;
  if (IsLong()) return Keep(message, {});
  line_->Send(message);
}

void Upstream::Send(const ctl::Msg& message) {
  if (joined_ && !IsLong()) line_->Send(message);
}

void Upstream::Seek(uint16_t port, std::function<void()> done) {
  if (!joined_ || port == 0 || directory_.IsSought(port)) return done();
  auto& waiters = seeking_[port];
  waiters.push_back(std::move(done));
  if (waiters.size() != 1) return;
  ctl::Msg message;
  message.type = ctl::Type::kSeek;
  message.a = port;
  Ask(message, [this, port](int status, const ctl::Msg& answer, UniqueFd) {
    Sought(port, status, answer.a == 0);
  });
}

// all: the broker tells us of everything from now on, since we seek so much.
void Upstream::Sought(uint16_t port, int status, bool all) {
  if (status == 0 && all) directory_.SetSeeks(false);
  if (status == 0 && !all) directory_.SetSought(port);
  const auto waiters = std::exchange(seeking_[port], {});
  seeking_.erase(port);
  for (const auto& done : waiters) done();
}

void Upstream::SeekAll() {
  seeks_all_ = true;
  if (!joined_ || directory_.IsSought(0)) return;  // no port is 0: all are known already
  ctl::Msg message;
  message.type = ctl::Type::kSeek;
  Ask(message, [this](int status, const ctl::Msg&, UniqueFd) {
    if (status == 0) directory_.SetSeeks(false);
  });
}

void Upstream::Link(const LinkGroup& link, std::function<void(int)> done) {
  ctl::Msg message;
  message.type = ctl::Type::kLink;
  message.uuid = link.owner[1];
  message.peer = link.owner[0];
  message.id = link.id;
  SayWhose(message, message.peer);
  if (!joined_ || IsLong()) return done(joined_ ? EAGAIN : ENOTCONN);
  asks_.Ask(*line_, message, link.fd,
            [done = std::move(done)](int status, const ctl::Msg&, UniqueFd) { done(status); });
}

}  // namespace postern::daemon
