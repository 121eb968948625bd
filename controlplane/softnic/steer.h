// steer.h - whose a packet is: what bpf/xdp_filter.bpf.c decides, in a process.
// SPDX-License-Identifier: Apache-2.0
//
// A packet is looked up by its flow (VLAN, protocol, both ends), then by its port on its address,
// then by its port on any address if its own is one of this host; ICMP errors go with the packet
// that they are about, fragments with their first. What has no filter is the kernel's:
// it goes into the TAP. docs/vi.md has the table.
//
// A filter for a port that connections are made from (PSTN_XDP_OUTGOING) leaves the kernel's
// listeners alone, too, and one whose listener has ended (PSTN_XDP_ENDED) their SYNs. A handshake
// that the kernel has answered with a SYN cookie can't be told here: its last ACK is the VI's.
//
// A filter for a port leaves alone the connections that the kernel had before. The XDP program asks
// for each packet; here that would be a system call, so the answer is kept for each connection: a
// SYN makes it the VI's, and for what comes without one the kernel is asked once.
//
// A filter takes nothing that the kernel has for another user: its asker may have given up what the
// socket held that it once showed. So the kernel is asked for each SYN whose listener would get it,
// and for each SYN and SYN-ACK of a flow with a filter.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "../posternd/bpf/xdp_maps.h"

namespace postern::softnic {

class Steer {
 public:
  static constexpr uint32_t kKernel = ~uint32_t{0};
  // What the kernel has between these ends: a connection (or one in TIME_WAIT, which is no
  // program's any more), or else a listener for it; and whose it is.
  enum class Has : uint8_t { kNothing, kListener, kConnection, kEnded };
  struct Holder {
    Has has = Has::kNothing;
    uint32_t uid = 0;
  };
  // Of a segment that belongs to nothing that is known; of one that begins something.
  enum class Why : uint8_t { kUnknown, kBegins };
  using Asked = std::function<Holder(const pstn_xdp_flow&, Why)>;
  // `seed`: so that no outsider knows which keys fall together.
  Steer(uint64_t seed, Asked kernel_has);

  // The slot whose packet it is, or kKernel.
  uint32_t Route(const uint8_t* frame, uint32_t bytes);

  // `owner`: the posternd that has added it, for Sweep(). 0 or -errno.
  int AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target, uint64_t owner);
  int AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target, uint64_t owner);
  // Only what leads to that slot.
  void RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot);
  void RemovePort(const pstn_xdp_port& port, uint32_t slot);
  void DropSlot(uint32_t slot);
  void Sweep(const std::function<bool(uint64_t owner)>& lives);
  void SetLocal(const pstn_xdp_ip* addresses, uint32_t count);
  bool HasFlow(const pstn_xdp_flow& flow) const;
  bool HasPort(const pstn_xdp_port& port) const;
  uint64_t count(uint32_t which) const { return counts_[which]; }  // PSTN_XDP_COUNT_*

 private:
  struct Packet;
  struct Target {
    pstn_xdp_target to;
    uint64_t owner;
  };
  template <typename Key>
  struct Hash {
    uint64_t seed;
    size_t operator()(const Key& key) const;
  };
  template <typename Key>
  struct Same {
    bool operator()(const Key& a, const Key& b) const;
  };
  template <typename Key>
  using Map = std::unordered_map<Key, Target, Hash<Key>, Same<Key>>;
  // What is known of a connection that came by a port's filter; a later one takes its place.
  struct Known {
    pstn_xdp_flow flow;
    bool is_known, is_kernels, by_flow;  // by a flow's filter, or a port's
  };
  struct Piece {
    pstn_xdp_fragments key;
    uint32_t slot;
    bool is_used;
  };

  const Target* Find(const Packet& p, const pstn_xdp_flow& flow);
  bool IsKernels(const Packet& p, const pstn_xdp_flow& flow, const pstn_xdp_target& target);
  bool HasAnother(const Packet& p, const pstn_xdp_flow& flow, uint32_t uid);
  Known& KnownAt(const pstn_xdp_flow& flow);
  uint32_t RouteIcmp(Packet& p);
  uint32_t RouteFragment(const Packet& p);
  uint32_t RouteSegment(Packet& p);
  Piece& PieceAt(const pstn_xdp_fragments& key);
  template <typename Key>
  static void RemoveIfOf(Map<Key>& map, const Key& key, uint32_t slot);

  const uint64_t seed_;
  Asked kernel_has_;
  Map<pstn_xdp_flow> flows_;
  Map<pstn_xdp_port> ports_;
  std::unordered_set<pstn_xdp_ip, Hash<pstn_xdp_ip>, Same<pstn_xdp_ip>> local_;
  std::vector<Known> known_;
  std::vector<Piece> pieces_;
  uint64_t counts_[PSTN_XDP_COUNTS] = {};
};

}  // namespace postern::softnic
