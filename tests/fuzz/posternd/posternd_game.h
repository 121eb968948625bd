// SPDX-License-Identifier: Apache-2.0
// posternd_game.h - a posternd in this process, its two families and their reapers, and what must
// hold whatever the hostile one does. posternd_fuzz.cc says what happens in it.
#pragma once
#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <initializer_list>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "../../../controlplane/posternd/kit/log.h"
#include "../../../controlplane/posternd/kit/proc.h"
#include "../../../controlplane/posternd/report/report_sockets.h"
#include "../../../controlplane/posternd/server/server.h"
#include "posternd_world.h"
#include "state/area.h"

namespace postern {

using ctl::Msg;
using ctl::Type;

constexpr uint32_t kSeqs = 0x10000;  // ours; those of posternd's own questions are smaller
constexpr uint32_t kHostile = 0, kHonest = 1;
constexpr uint32_t kProgramsOf[2] = {3, 2};
constexpr uint32_t kListenerEp = 5;
// What one message may cost, by its way through all slots and once through all processes.
constexpr uint64_t kLooksOfSlot = 24, kLooksOfProcess = 6, kLooksElse = 200;
constexpr uint64_t kBytesOfSocket = 384, kBytesElse = 1 << 20;

struct Segment {
  pstn_uuid id{};
  int fd = -1;
  StackMap* s = nullptr;
};

struct Line {
  int fd;
  uint32_t family, program;
  bool said_hello = false;
  std::set<uint32_t> asked;
  std::vector<uint32_t> jobs;  // of a keeper
};

// A reaper, played: what posternd has started and not ended.
struct Reaper {
  pid_t pid;
  int line;
  uint32_t family = kHostile;
  StackMap* s = nullptr;
  bool killed = false;
};

class PosterndGame {
 public:
  PosterndGame() {
    if (getenv("POSTERND_FUZZ_LOG") != nullptr) {
      daemon::SetLogDetail(daemon::LogDetail::kDebug);
    } else {
      daemon::SetSilent();
    }
    signal(SIGPIPE, SIG_IGN);
    door_ = OpenDoor("posternd-fuzz", address_, nursery_);
    pidns_ = static_cast<uint32_t>(daemon::PidnsIno(getpid()));
  }

 protected:
  // ---------------------------------------------------------------- the world
  Segment& Make(const pstn_uuid& id) {
    Segment segment = {id, CreateStack(id), nullptr};
    segment.s = MapStack(segment.fd);
    FUZZ_CHECK(segment.s != nullptr);
    for (pstn_slot& slot : segment.s->slots.Before(8)) {
      for (uint32_t& chunk : slot.chunk) chunk = PSTN_NONE;
    }
    segments_.push_back(segment);
    return segments_.back();
  }

  void Begin() {
    base_ = event_base_new();
    directory_ = std::make_unique<daemon::Directory>();
    FUZZ_CHECK(directory_->Create({7, 8}) == 0);
    vis_ = std::make_unique<daemon::Vis>(base_, "off");
    server_ = std::make_unique<daemon::Server>(base_, *directory_, daemon::UniqueFd(dup(door_)),
                                               daemon::UniqueFd(), "", 0, "", "", *vis_, 0);
    daemon::Reapers& reapers = server_->registry().reapers();
    reapers.start = [this](const daemon::Stack&, int line, pid_t& pid) {
      pid = next_reaper_++;
      reapers_.push_back({pid, fcntl(line, F_DUPFD_CLOEXEC, 0)});
      return 0;
    };
    reapers.end = [this](pid_t pid) {
      for (Reaper& one : reapers_) one.killed |= one.pid == pid;
    };
    answers_ = 0;
    hosts_ = ProcessesOfHost() + 100;
    stack_[kHostile] = Make({0x1111, 1});
    stack_[kHonest] = Make({0x2222, 2});
    spare_ = Make({0x3333, 3});
    twin_ = Make(stack_[kHonest].id);  // one that says that it is the honest one
    for (const Segment& one : segments_) belongs_[IdOf(one.fd)] = 1u << kHostile;
    belongs_[IdOf(stack_[kHonest].fd)] = 1u << kHonest;
    socket_ = ListeningSocket();
    ForEachProgram([this](uint32_t family, uint32_t) { nursery_->Order(stack_[family].fd); });
    ForEachProgram([this](uint32_t family, uint32_t i) {
      programs_[family][i] = std::make_unique<Program>(*nursery_);
    });
    ForEachProgram([this](uint32_t family, uint32_t i) { Birth(family, i); });
    Listen();
  }

  template <typename Fn>
  void ForEachProgram(Fn fn) const {
    for (uint32_t family : {kHostile, kHonest}) {
      for (uint32_t i = 0; i < kProgramsOf[family]; i++) fn(family, i);
    }
  }

  static int ListeningSocket() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FUZZ_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 && listen(fd, 8) == 0);
    return fd;
  }

  // A program in slot `i` of its family's stack, which says hello.
  void Birth(uint32_t family, uint32_t i) {
    auto& place = programs_[family][i];
    if (!place->lives()) {
      nursery_->Order(stack_[family].fd);
      place = std::make_unique<Program>(*nursery_);
    }
    pstn_slot& slot = stack_[family].s->slots.Own(ProcIndex(i));
    slot.pid = static_cast<uint32_t>(place->pid());
    slot.pidns = pidns_;
    slot.start_time = daemon::StartTime(place->pid());
    slot.exec_pending = PSTN_EXEC_NONE;
    slot.chunk[0] = i;
    slot.state = PSTN_SL_LIVE;
    uint32_t& hw = stack_[family].s->hdr.slots_hw;
    if (family == kHonest || hw <= i) hw = hw <= i ? i + 1 : hw;
    Dial(family, i);
    Ask(*lines_.rbegin(), Hello(family, i), stack_[family].fd);
  }
  void Dial(uint32_t family, uint32_t i) {
    const int fd = programs_[family][i]->Connect();
    if (fd < 0) return;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    lines_.push_back({fd, family, i, false, {}, {}});
    Loop();
  }
  Msg Hello(uint32_t family, uint32_t slot) const {
    Msg m;
    m.type = Type::kHello;
    m.a = slot;
    m.uuid = stack_[family].id;
    return m;
  }
  void Listen() {
    pstn_ep& ep = stack_[kHonest].s->eps.Own(EpIndex(kListenerEp));
    ep.state = PSTN_EP_LISTEN;
    ep.gen = 1;
    ep.refs = 1;
    stack_[kHonest].s->fdchunks.Own(ChunkIndex(0)).fd[3] = PSTN_FD_EP | kListenerEp;
    Msg m;
    m.type = Type::kListen;
    m.a = kListenerEp;
    m.b = 1;
    m.c = 8;
    Line* const line = LineOf(kHonest, 0);
    Ask(*line, m, socket_);
    FUZZ_CHECK(IsListed());
  }
  bool IsListed() const {
    for (const auto& [entry, l] : directory_->listeners()) {
      if (l.stack.hi == stack_[kHonest].id.hi && l.ep_idx == kListenerEp) return true;
    }
    return false;
  }
  Line* LineOf(uint32_t family, uint32_t program) {
    Line* found = nullptr;
    for (Line& line : lines_) {
      if (line.family == family && line.program == program) found = &line;
    }
    return found;
  }
  void Hang(Line& line) {
    close(line.fd);
    lines_.remove_if([&](const Line& one) { return &one == &line; });
  }
  void Death(uint32_t family, uint32_t i) {
    programs_[family][i]->Die();
    while (Line* const line = LineOf(family, i)) Hang(*line);
  }

  void End() {
    ForEachProgram([this](uint32_t family, uint32_t i) { Death(family, i); });
    answers_ = 0;
    // Each of its slots may be one that has to be reaped.
    for (int i = 0; i < 60 && !server_->registry().stacks().empty(); i++) Pass(600, 64);
    for (const auto& [id, stack] : server_->registry().stacks()) {
      // It may have named a process that posternd must not look into, which keeps it.
      for (const auto& [slot, process] : stack->processes)
        FUZZ_CHECK(!daemon::Registry::IsMember(*process));
    }
    const bool all_gone = server_->registry().stacks().empty();
    for (int i = 0; i < 20 && all_gone && !server_->registry().links().empty(); i++) Pass(600);
    FUZZ_CHECK(!all_gone || server_->registry().links().empty());
    server_.reset();
    vis_.reset();
    directory_.reset();
    event_base_free(base_);
    for (const Reaper& one : reapers_) close(one.line);
    for (const Segment& one : segments_) UnmapStack(one.s), close(one.fd);
    for (const int fd : kept_) close(fd);
    close(socket_);
    reapers_.clear(), segments_.clear(), kept_.clear(), belongs_.clear();
    g_ahead_ns = 0;
  }

  // ---------------------------------------------------------------- posternd's turn
  void Loop() {
    for (int i = 0; i < 4; i++) (void)event_base_loop(base_, EVLOOP_NONBLOCK);
  }
  void Settle(int rounds = 4) {
    for (int i = 0; i < rounds; i++) {
      Loop();
      for (size_t n = 0; n < reapers_.size();) n += Serve(reapers_[n]) ? 1u : 0u;
      for (auto it = lines_.begin(); it != lines_.end();) {
        Line& line = *it;
        ++it;
        if (!Read(line)) Hang(line);
      }
    }
    if (programs_[kHonest][0]->lives()) FUZZ_CHECK(IsListed());
  }
  void Pass(uint64_t ms, int rounds = 4) {
    g_ahead_ns += ms * 1'000'000;
    Settle(rounds);
  }

  void Ask(Line& line, Msg m, int fd) {
    m.seq = m.type == Type::kExport && m.seq != 0 ? m.seq : ++next_seq_;
    if (m.seq >= kSeqs) line.asked.insert(m.seq);
    ctl::Packet packet(m, fd);
    if (sendmsg(line.fd, &packet.header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
    const uint64_t before = g_looks;
    Loop();
    if (g_looks - before > kLooksOfSlot * kProcesses.usual + kLooksOfProcess * hosts_ + kLooksElse)
      FuzzDie("a message costs too much");
    if (fd >= 0) belongs_.try_emplace(IdOf(fd), 1u << line.family);
  }

  // False: the line has ended.
  bool Read(Line& line) {
    for (;;) {
      Msg m;
      ctl::Packet packet(m);
      const ssize_t got = recvmsg(line.fd, &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got < 0 && errno == EAGAIN) return true;
      if (got <= 0) return false;
      const int fd = packet.TakeFd(close);
      FUZZ_CHECK(got == sizeof m);
      Check(line, m, fd);
    }
  }
  void Check(Line& line, const Msg& m, int fd) {
    if (m.seq >= kSeqs) FUZZ_CHECK(line.asked.erase(m.seq) == 1);
    if (m.seq != 0 && m.seq < kSeqs) line.jobs.push_back(m.seq);
    if (m.type == Type::kHello && m.status == 0) line.said_hello = true;
    if (line.family == kHonest && m.type == Type::kHello) FUZZ_CHECK(m.status == 0);
    // It is its own process, and has that number, whatever the other family says of it.
    if (line.family == kHonest && m.type == Type::kExport) FUZZ_CHECK(m.status != ENOENT);
    if (fd < 0) return;
    const FileId id = IdOf(fd);
    if (belongs_.count(id) == 0) belongs_[id] = Readers(m, fd);
    if ((belongs_[id] & 1u << line.family) == 0) FuzzDie("a descriptor of the other family");
    if (line.family == kHonest && (m.type == Type::kLgr || m.type == Type::kIntroduce)) {
      pstn_uuid owner[2];
      FUZZ_CHECK(m.a < kGroups.usual &&
                 OwnersOfLgr(fd, stack_[kHonest].s->lgrs.Own(LgrIndex(m.a)).id, owner));
    }
    kept_.push_back(fd);
    if (kept_.size() <= 4) return;
    close(kept_.front());
    kept_.erase(kept_.begin());
  }
  // Which process may have what posternd has made.
  uint32_t Readers(const Msg& m, int fd) const {
    struct stat st {};
    if (m.type == Type::kStatus && fstat(fd, &st) == 0) {
      const uint64_t most =
          daemon::SocketsMax(*stack_[kHonest].s) * kBytesOfSocket * 2 + kBytesElse;
      FUZZ_CHECK(static_cast<uint64_t>(st.st_size) <= most);
    }
    pstn_lgr_hdr h;
    if (pread(fd, &h, sizeof h, 0) != sizeof h || h.magic != PSTN_MAGIC_LGR) return 3;
    uint32_t readers = 0;
    for (const pstn_uuid& owner : h.stack) {
      const bool honest = owner.hi == stack_[kHonest].id.hi && owner.lo == stack_[kHonest].id.lo;
      readers |= 1u << (honest ? kHonest : kHostile);
    }
    return readers;
  }

  // ---------------------------------------------------------------- the reapers
  // False: it is gone from the list.
  bool Serve(Reaper& reaper) {
    for (;;) {
      Msg m;
      int fd = -1;
      if (reaper.killed || !ReceiveWith(reaper.line, &m, sizeof m, fd, MSG_DONTWAIT)) break;
      if (m.type == Type::kJobStack) {
        for (const Segment& one : segments_) {
          if (IdOf(one.fd) == IdOf(fd)) reaper.s = one.s;
        }
        FUZZ_CHECK(reaper.s != nullptr);
        reaper.family = reaper.s == stack_[kHonest].s ? kHonest : kHostile;
      }
      if (m.type == Type::kJobLink && reaper.family == kHostile)
        FUZZ_CHECK((Readers(m, fd) & 1u << kHostile) != 0);
      if (fd >= 0) close(fd);
      if (m.type >= Type::kJobListeners && !Answer(reaper, m)) break;
    }
    if (!reaper.killed) return true;
    const pid_t pid = reaper.pid;
    close(reaper.line);
    reapers_.erase(reapers_.begin() + (&reaper - reapers_.data()));
    server_->registry().reapers().Ended(pid, SIGKILL);
    return false;
  }
  // What an honest one does, as far as posternd sees it; a hostile family's may do something else.
  bool Answer(Reaper& reaper, const Msg& job) {
    Msg reply;
    reply.type = job.type;
    reply.seq = job.seq;
    const uint32_t how = reaper.family == kHostile ? answers_ % 10 : 0;
    if (how == 1) return true;  // it hangs
    if (how == 2) return reaper.killed = true, false;
    if (how == 3) reply.seq++;
    if (how == 4) reply.d = 1;
    if (how == 5) reply.status = EBUSY;
    if (how == 6) reply.status = -1;
    if (how == 7) reply.status = EEXIST;
    if (how == 0 || how == 4) reply.status = Work(*reaper.s, job);
    return SendWith(reaper.line, &reply, sizeof reply, -1);
  }
  static int32_t Work(StackMap& s, const Msg& job) {
    switch (job.type) {
      case Type::kJobSlot:
        if (job.a < kProcesses.usual && s.slots.Own(ProcIndex(job.a)).pid == job.b)
          s.slots.Own(ProcIndex(job.a)).state = PSTN_SL_FREE;
        return 0;
      case Type::kJobEnd:
        for (pstn_slot& slot : s.slots.Before(s.hdr.slots_hw)) {
          if (slot.state == PSTN_SL_LIVE || slot.state == PSTN_SL_EMBRYO) return EEXIST;
          slot.state = PSTN_SL_FREE;
        }
        return 0;
      case Type::kJobPeerDead:
        s.lgrs.Own(LgrIndex(job.a % kGroups.usual)).state = 2;
        memset(s.lgrs.Own(LgrIndex(job.a % kGroups.usual)).conn_ep, 0,
               sizeof s.lgrs.Own(LgrIndex(0)).conn_ep);
        return 0;
      default:
        return 0;
    }
  }

  sockaddr_un address_{};
  std::unique_ptr<Nursery> nursery_;
  int door_ = -1, socket_ = -1;
  uint32_t pidns_ = 0, next_seq_ = kSeqs, answers_ = 0;
  pid_t next_reaper_ = 1 << 30;
  uint64_t hosts_ = 0;
  event_base* base_ = nullptr;
  std::unique_ptr<daemon::Directory> directory_;
  std::unique_ptr<daemon::Vis> vis_;
  std::unique_ptr<daemon::Server> server_;
  std::vector<Segment> segments_;
  Segment stack_[2], spare_, twin_;
  std::unique_ptr<Program> programs_[2][4];
  std::list<Line> lines_;
  std::vector<Reaper> reapers_;
  std::map<FileId, uint32_t> belongs_;  // a bit for each family that may have it
  std::vector<int> kept_;               // the last descriptors that came
};

}  // namespace postern
