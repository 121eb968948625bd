// SPDX-License-Identifier: Apache-2.0
// posternd_steps.h - what the hostile family of posternd_fuzz writes and sends, as bytes say it.
#pragma once
#include <cstring>
#include <vector>

#include "abi/postern_abi.h"
#include "base/schema/options.h"
#include "ctl/proto.h"

namespace postern {

struct Step {
  uint8_t op, a, b, c, d, e, f;
  uint32_t where() const { return b | static_cast<uint32_t>(c) << 8; }
};

// What there is to be named: the more of it is true, the further it gets.
struct Names {
  std::vector<uint32_t> pids;
  uint32_t pidns = 0;
  std::vector<pstn_uuid> ids;  // of stacks, then of link groups
};

inline uint32_t WordOf(const Step& in, const Names& names) {
  static constexpr uint32_t kWords[] = {0,
                                        0,
                                        1,
                                        1,
                                        2,
                                        2,
                                        3,
                                        4,
                                        5,
                                        255,
                                        256,
                                        1023,
                                        1024,
                                        4095,
                                        4096,
                                        kSockets.usual - 1,
                                        kSockets.usual,
                                        PSTN_NONE,
                                        PSTN_NONE - 1,
                                        0x7fffffff,
                                        0x80000000,
                                        12345,
                                        PSTN_FD_EP,
                                        PSTN_FD_EP | 5,
                                        PSTN_FD_EP | PSTN_FD_IDX,
                                        PSTN_FD_EPOLL | 1};
  constexpr uint32_t kCount = sizeof kWords / sizeof kWords[0];
  if (in.d < 160) return kWords[in.d % kCount];
  if (in.d < 224) return names.pids[in.d % names.pids.size()];
  if (in.d < 232) return names.pidns;
  return in.e | static_cast<uint32_t>(in.f) << (in.d % 24);
}

inline void PutWord(void* object, size_t bytes, const Step& in, const Names& names) {
  const uint32_t word = WordOf(in, names);
  memcpy(static_cast<uint8_t*>(object) + in.where() * 4ull % (bytes - 4) / 4 * 4, &word, 4);
}

// One write into a stack, or one kind of word in a whole table.
inline void Spoil(StackMap& s, const Step& in, const Names& names) {
  const uint32_t word = WordOf(in, names);
  pstn_slot& slot = s.slots.Own(ProcIndex(in.a & 0x80u ? in.a : in.a % 6u));
  pstn_lgr_ref& ref = s.lgrs.Own(LgrIndex(in.a & 0x80u ? in.a : in.a % 4u));
  pstn_ep& ep = s.eps.Own(EpIndex(in.a % 8u));
  Options options;
  switch (in.b % 24) {
    case 0:
    case 1:
      slot.state = in.c % 4u;
      slot.exec_pending = in.c / 4 % 3u;
      break;
    case 2:
      slot.pid = word;
      break;
    case 3:
      slot.pidns = in.c & 1u ? 12345 : word;
      break;
    case 4:
      slot.start_time = in.c & 1u ? 0 : word;
      break;
    case 5:
    case 6:  // any program's pid, the other family's too, in a slot that looks alive
      slot.state = PSTN_SL_LIVE;
      slot.pid = names.pids[in.c % names.pids.size()];
      slot.pidns = in.d & 1u ? names.pidns : 0;
      slot.start_time = 0;
      slot.exec_pending = in.d / 2 % 3u;
      slot.chunk[0] = in.e % 4u;
      break;
    case 7:
      slot.chunk[in.c & 1u ? 0 : in.c * 4u] = word;
      break;
    case 8:  // a table that is long by being the same everywhere
      for (uint32_t& chunk : slot.chunk) chunk = in.c % 4u;
      if ((in.d & 1u) == 0) break;
      for (uint32_t& entry : s.fdchunks.Own(ChunkIndex(in.c % 4u)).fd)
        entry = PSTN_FD_EP | in.d % 8u;
      s.eps.Own(EpIndex(in.d % 8u)).state = in.e % 9u;
      break;
    case 9:
    case 10: {  // a slot like this one, all over
      const pstn_slot copy = slot;
      const uint32_t pidns = in.c & 1u ? 12345 : copy.pidns;
      for (uint32_t i = 8; i < kProcesses.usual; i++) {
        s.slots.Own(ProcIndex(i)).state = copy.state;
        s.slots.Own(ProcIndex(i)).pid = copy.pid;
        s.slots.Own(ProcIndex(i)).pidns = pidns;
        s.slots.Own(ProcIndex(i)).start_time = copy.start_time;
        s.slots.Own(ProcIndex(i)).exec_pending = copy.exec_pending;
      }
      s.hdr.slots_hw = kProcesses.usual;
      break;
    }
    case 11:
      for (uint32_t& entry : s.fdchunks.Own(ChunkIndex(in.c % 4u)).fd)
        entry = PSTN_FD_EP | in.d % 8u;
      break;
    case 12:
      s.fdchunks.Own(ChunkIndex(in.c % 4u)).fd[in.d % 8u] = word;
      break;
    case 13:
      PutWord(&ep, sizeof ep, in, names);
      break;
    case 14:
      ep.state = in.c % 9u;
      ep.gen = in.d % 4u;
      ep.lgr_idx = in.e % 4u;
      ep.family = in.f & 1u ? 2 : 10;
      break;
    case 15:
      ref.state = in.c % 3u;
      break;
    case 16:
      ref.side = in.c % 3u;
      break;
    case 17:
      ref.id = names.ids[in.c % names.ids.size()];
      break;
    case 18:
      ref.peer = names.ids[in.c % 4u];
      ref.remote = in.d & 1u;
      break;
    case 19:
      PutWord(&ref, in.d & 1u ? 128 : sizeof ref, in, names);
      break;
    case 20:
      s.hdr.lgrs_hw = word;
      break;
    case 21:
      s.hdr.slots_hw = in.c & 1u ? word : in.d % 16u;
      break;
    case 22:
      memcpy(&options, s.hdr.options, sizeof options);
      memset(options.stack_name, in.c & 1u ? 'n' : 0xff, in.d % (sizeof options.stack_name + 1));
      memcpy(s.hdr.options, &options, sizeof options);
      break;
    default:
      PutWord(&s.hdr, sizeof s.hdr, in, names);
      break;
  }
}

inline ctl::Msg MessageOf(const Step& in, const Names& names) {
  using ctl::Type;
  static constexpr Type kTypes[] = {
      Type::kHello,  Type::kHello,    Type::kHello,   Type::kListen,    Type::kUnlisten,
      Type::kAddLgr, Type::kAddLgr,   Type::kAddLgr,  Type::kIntroduce, Type::kIntroduce,
      Type::kGetLgr, Type::kStatus,   Type::kStatus,  Type::kReap,      Type::kExport,
      Type::kExport, Type::kKeeper,   Type::kKeeper,  Type::kNegotiate, Type::kTakeHeld,
      Type::kAttach, Type::kRegister, Type::kRelease, Type::kBell,      Type::kVi,
      Type::kFilter, Type::kWire,     Type::kNamed,   Type::kLgr,       Type::kSeek};
  ctl::Msg m;
  m.type =
      in.b < 240 ? kTypes[in.b % (sizeof kTypes / sizeof kTypes[0])] : static_cast<Type>(in.b % 80);
  // What reads the kernel's tables is netlink_fuzz's.
  if (m.type == Type::kQuit || m.type == Type::kRoutes || m.type == Type::kResolve)
    m.type = Type::kLgr;
  m.a = m.type == Type::kStatus ? in.c % 4u : in.c & 0x40u ? WordOf(in, names) : in.c % 6u;
  m.b = in.c & 0x80u || m.type == Type::kExport ? names.pids[in.d % names.pids.size()]
                                                : WordOf(in, names);
  m.c = in.d & 1u ? WordOf(in, names) : in.d % 16u;
  m.d = in.d % 8u;
  m.uuid = names.ids[in.e % names.ids.size()];
  m.cookie = in.e;
  if (m.type == Type::kExport && in.c & 1u) m.a = PSTN_NONE;
  return m;
}

}  // namespace postern
