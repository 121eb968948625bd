// SPDX-License-Identifier: Apache-2.0
// posternd_fuzz.cc - posternd beside a family that writes anything into its own stack, and sends
// anything on its lines: registry, links, directory, reports, exports, scans of embryos and of
// images, named stacks.
//
// The input is a program of seven-byte steps: a write into the stack; a message, with a descriptor;
// a process that dies, or one more; time that passes; what the family's reaper answers, which its
// memory may have taken over. Beside it an honest family does what honest ones do. After each step:
//   - what comes on a line is an answer to what was asked on that line, or meant for its family; no
//     descriptor of the other family is with it
//   - the honest family is served, and its listener is in the directory
//   - posternd has looked at no more files than a message may cost, and its report has its limit
//   - posternd has mapped nothing of a family writable (so it takes no lock in it, either)
// In the end, when all have died, it knows nothing of them, and has as many descriptors as before.
#include "../../../controlplane/posternd/guard/closer.h"
#include "moved_clock.h"
#include "posternd_game.h"
#include "posternd_steps.h"

extern "C" {
FILE* fopen64(const char* path, const char* mode) {
  static const auto next =
      reinterpret_cast<FILE* (*)(const char*, const char*)>(dlsym(RTLD_NEXT, "fopen64"));
  postern::g_looks++;
  return next(path, mode);
}
dirent* readdir(DIR* dir) {
  static const auto next = reinterpret_cast<dirent* (*)(DIR*)>(dlsym(RTLD_NEXT, "readdir64"));
  postern::g_looks++;
  return next(dir);
}
}

namespace postern {
namespace {

constexpr size_t kStepsMax = 100, kStepBytes = 7;

class Play : public PosterndGame {
 public:
  void Run(const uint8_t* data, size_t size) {
    const size_t before = OpenDescriptors();
    Begin();
    for (size_t i = 0; i + kStepBytes <= size && i / kStepBytes < kStepsMax; i += kStepBytes) {
      Step in;
      memcpy(&in, data + i, sizeof in);
      Take(in);
      Settle();
    }
    FUZZ_CHECK(WritableSegments() == segments_.size());
    End();
    daemon::AwaitCloses();
    if (OpenDescriptors() != before) FuzzDie("posternd keeps descriptors of the dead");
  }

 private:
  // ---------------------------------------------------------------- steps
  Names Known() const {
    Names names;
    ForEachProgram([&](uint32_t family, uint32_t i) {
      names.pids.push_back(static_cast<uint32_t>(programs_[family][i]->pid()));
    });
    names.pids.push_back(static_cast<uint32_t>(nursery_->pid()));  // lives, and has none of it
    names.pidns = pidns_;
    names.ids = {stack_[kHostile].id, stack_[kHonest].id, spare_.id, {}};
    for (const auto& [id, link] : server_->registry().links()) {
      const bool known = link->end[0].stack == nullptr || link->end[1].stack == nullptr ||
                         link->end[0].stack->id.hi == stack_[kHostile].id.hi ||
                         link->end[1].stack->id.hi == stack_[kHostile].id.hi;
      if (known && names.ids.size() < 8) names.ids.push_back(id);
    }
    return names;
  }

  void Take(const Step& in) {
    const Names names = Known();
    const uint32_t i = in.a % kProgramsOf[kHostile];
    static constexpr uint64_t kPauseMs[] = {1, 60, 260, 510, 2100, 5100, 10'100, 11'000};
    switch (in.op % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return Spoil(*(in.op & 0x80u ? spare_ : stack_[kHostile]).s, in, names);
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
        return Hostile(in, names);
      case 10:
        return Honest(in);
      case 11:
      case 12:
        return Pass(kPauseMs[in.a % 8]);
      case 13:
        if (in.b < 32) return Death(kHonest, 1);
        return Death(kHostile, i);
      case 14:
        if (programs_[kHostile][i]->lives() && (in.b & 1u) != 0) return Dial(kHostile, i);
        return Birth(kHostile, i);
      default:
        if ((in.b & 1u) != 0) return Keep(in);
        answers_ = in.c;
    }
  }
  void Hostile(const Step& in, const Names& names) {
    Line* const line = LineOf(kHostile, in.a % kProgramsOf[kHostile]);
    if (line == nullptr) return;
    Msg m = MessageOf(in, names);
    if (in.c % 4u != 0 && (m.type == Type::kHello || m.type == Type::kKeeper)) {
      m.a = line->program;
      m.uuid = stack_[kHostile].id;
    }
    int fd = -1;
    bool made = false;
    switch (in.f % 10) {
      case 0:
      case 1:
      case 2:
        fd = m.uuid.hi == spare_.id.hi ? spare_.fd : stack_[kHostile].fd;
        break;
      case 3:
      case 4:
        // A link group of its own once more: the other end of it, or under another index.
        if (m.type == Type::kAddLgr) fd = OneOfItsLinks(in, m);
        [[fallthrough]];
      case 5:
        if (fd < 0 && !kept_.empty()) fd = kept_[in.e % kept_.size()];
        if (fd >= 0 && (belongs_[IdOf(fd)] & 1u << kHostile) == 0) fd = -1;
        break;
      case 6:
      case 7:
        if (in.f % 10 == 6 && m.type != Type::kAddLgr) fd = twin_.fd;
        if (fd < 0) made = (fd = NewLink(in, names, m)) >= 0;
        break;
      case 8:
        made = (fd = m.type == Type::kListen ? ListeningSocket() : memfd_create("x", 0)) >= 0;
        break;
      default:
        break;
    }
    // A connection of process b is for that one's family, whichever process has it now.
    const bool passed_on = m.type == Type::kExport && m.a == PSTN_NONE && fd >= 0;
    if (passed_on) belongs_[IdOf(fd)] |= FamilyOf(m.b);
    Ask(*line, m, fd);
    if (made) close(fd);
  }
  // A link group that it has made itself, as it says with which stack.
  int NewLink(const Step& in, const Names& names, const Msg& m) {
    const pstn_uuid id = (in.d & 1u) != 0 ? NewUuid() : names.ids[in.d % names.ids.size()];
    const pstn_uuid owner[2] = {names.ids[in.e % 2u], names.ids[in.e / 2 % 2u]};
    if (m.type == Type::kAddLgr) Enter(m.a, in.e / 4 % 2u, id, owner);
    return CreateLgr(id, owner[0], owner[1]);
  }
  int OneOfItsLinks(const Step& in, Msg& m) {
    daemon::Stack* const stack = server_->registry().Find(stack_[kHostile].id);
    if (stack == nullptr || stack->links.empty()) return -1;
    auto it = stack->links.begin();
    std::advance(it, in.d % stack->links.size());
    const daemon::LinkGroup& link = *it->second;
    if ((in.e & 6u) != 0) m.a = it->first;
    Enter(m.a, in.e & 1u, link.id, link.owner.data());
    return link.fd->get();
  }
  void Enter(uint32_t idx, uint32_t side, const pstn_uuid& id, const pstn_uuid* owner) {
    pstn_lgr_ref& ref = stack_[kHostile].s->lgrs.Own(LgrIndex(idx % kGroups.usual));
    ref.state = 1;
    ref.side = side;
    ref.id = id;
    ref.peer = owner[1 - side];
  }
  uint32_t FamilyOf(uint32_t pid) const {
    for (uint32_t i = 0; i < kProgramsOf[kHonest]; i++) {
      if (static_cast<uint32_t>(programs_[kHonest][i]->pid()) == pid) return 1u << kHonest;
    }
    return 1u << kHostile;
  }
  // A keeper's answer to a question of posternd's.
  void Keep(const Step& in) {
    for (Line& line : lines_) {
      if (line.family != kHostile || line.jobs.empty()) continue;
      Msg m;
      m.type = in.c & 1u ? Type::kExport : Type::kWire;
      m.seq = line.jobs.back();
      m.status = in.d % 8;
      line.jobs.pop_back();
      return Ask(line, m, -1);
    }
  }
  void Honest(const Step& in) {
    Line* const line = LineOf(kHonest, in.a % kProgramsOf[kHonest]);
    if (line == nullptr || !line->said_hello) return;
    Msg m;
    int fd = -1;
    switch (in.b % 5) {
      case 0:
        m.type = Type::kIntroduce;
        m.uuid = stack_[in.c & 1u ? kHonest : kHostile].id;
        m.a = in.c / 2 % 3u;
        break;
      case 1:
        m.type = Type::kGetLgr;
        m.a = in.c % 4u;
        break;
      case 2:
        m.type = Type::kStatus;
        m.a = in.c % 3u;
        break;
      case 3:
        // A connection of its own, whose number it knows of another of its processes.
        if (!programs_[kHonest][0]->lives()) return;
        m.type = Type::kExport;
        m.a = PSTN_NONE;
        m.b = static_cast<uint32_t>(programs_[kHonest][0]->pid());
        m.c = 3;
        fd = memfd_create("honest", 0);
        belongs_[IdOf(fd)] = 1u << kHonest;
        break;
      default:
        m.type = Type::kBell;
        break;
    }
    Ask(*line, m, fd);
    if (fd >= 0) close(fd);
  }
};

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* play = new postern::Play;
  play->Run(data, size);
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) {
  return postern::FuzzReplay(argc, argv, postern::kStepsMax * postern::kStepBytes);
}
#endif
