// SPDX-License-Identifier: Apache-2.0
// xsk.h - a VI over AF_XDP sockets that another process has made.
//
// posternd makes the sockets (one for each queue of the interface, all over one UMEM, which is the
// frames of the area) and hands their descriptors over; here they are mapped and polled, which
// needs no privilege. One VI object over all queues: the engine has one lock, and an interface is
// one way out for its routes. Each process of the family maps the same rings by the same sockets;
// a kernel before 6.4 refuses that for a socket that is bound (EBUSY), which posternd finds out
// before it hands one out.
//
// Copy mode (veth, TAP, NICs without zero copy) sends within the system call of Kick(), which is
// why it is asked for after each batch; received frames come without any call.
#pragma once
#include "ctl/vi_grant.h"
#include "vi/rings.h"

namespace postern {

// What waits in the line that posternd has answered with (ctl/vi_grant.h): the sockets, one for
// each queue, then the link; all close-on-exec, all the caller's to keep as long as the VI is used.
// (For a VI that an earlier posternd has made there are no sockets: queue_count is 0.) 0 or -errno,
// and then there are none.
int TakeGrant(int line, ctl::ViGrant& grant, int (&fds)[ctl::kGrantFdsMax]);
// What posternd has granted (ctl/vi_grant.h), into the area: once, before the first Attach().
void EnterGrant(const ctl::ViGrant& grant, pstn_vi& vi);

static_assert(ctl::kGrantQueuesMax == kViQueues);

class XskVi final : public RingVi {
 public:
  XskVi() = default;
  XskVi(const XskVi&) = delete;
  XskVi& operator=(const XskVi&) = delete;

  // Maps the rings of VI number `vi` by its sockets, one for each queue. They are this object's
  // from here on, and closed by Detach(). 0 or -errno, and then they are the caller's.
  int Attach(Area& area, uint32_t vi, const int* fds, uint32_t count);
  void Detach();
  uint32_t fd_count() const { return queue_count_; }
  int FdOf(uint32_t queue) const { return fds_[queue]; }  // to be passed on at exec

  ViStatus Kick() override;
  ViStatus Check() override;
  int Fd() override { return sleep_fd_; }
  // What the kernel counts: frames that it has dropped for want of room, and why.
  bool Statistics(uint32_t queue, xdp_statistics& out) const;

 private:
  struct Mapping {
    void* at;
    size_t bytes;
  };
  int MapQueue(uint32_t queue, int fd);
  template <typename Slot>
  int MapRing(int fd, const xdp_ring_offset& off, uint64_t page_off, uint32_t slots, Mapping& keep,
              Ring<Slot>& ring);
  void UnmapAll();
  ViStatus KickTx(uint32_t queue);
  ViStatus Enter(long error);

  int fds_[kViQueues] = {};
  int sleep_fd_ = -1;
  Mapping mappings_[kViQueues][4] = {};
};

}  // namespace postern
