// SPDX-License-Identifier: Apache-2.0
// tap_vi.h - a VI over a TAP that posternd has made beside an interface: the kernel's segmentation.
//
// The kernel hands over what a sender, or a driver's GRO, has gathered, up to 64 KiB, and takes as
// much, by one system call each (docs/adr/wire/0029). There are no rings: a packet is read into
// free frames, and written from the engine's, under the engine's lock. So nothing is ever between
// the engine and the kernel: Refill(), Completed() and Recover() have nothing to do, and a process
// that dies in a call has lost, at most, the packet that it was reading.
//
// A look at a TAP costs a system call, and the engine looks all the time, so Pending() must not
// cost one: a program that only talks to peers on this host would pay for it. What counts the
// packets that are steered to the TAP is a word in a map of the BPF program that does so (the
// *bell*), and that is mapped here, read only. It runs ahead of the TAP for the moment between
// counting and queueing, and stays ahead where the TAP had no room. And the TAP may have what the
// program has not counted (another program of the kernel's has written to it). pstn_vi::taken is
// how far we are; what differs for kMissesMax looks in a row is settled.
//
//   bell   ......|<- to be read ->|          Pending(): taken != bell
//            taken                bell
//
// A thread that sleeps on Fd() is woken by the TAP itself, and Arm() has Receive() look once
// without the bell.
#pragma once
#include "vi/packet_area.h"
#include "vi/vi.h"

namespace postern {

class TapVi final : public Vi {
 public:
  TapVi() = default;
  TapVi(const TapVi&) = delete;
  TapVi& operator=(const TapVi&) = delete;

  // VI number `vi` of the area. Both descriptors, the TAP, which does not block, and the map with
  // its bell, are this object's from here on, and closed by Detach(). 0 or -errno, and then they
  // are the caller's.
  int Attach(Area& area, uint32_t vi, int tap_fd, int bell_fd);
  void Detach();
  int tap_fd() const { return tap_fd_; }
  int bell_fd() const { return bell_fd_; }  // a new posternd knows the VI by it

  pstn_vi& shared() override { return *shared_; }
  uint32_t Receive(ViRx* rx, uint32_t max) override;
  uint32_t RefillRoom() override { return 0; }
  uint32_t Refill(const uint32_t*, uint32_t) override { return 0; }
  uint32_t SendRoom(uint32_t) override { return kViBatchMax; }
  // Packets are written at once, and their frames given back.
  uint32_t Send(const ViTx* tx, uint32_t count) override;
  uint32_t Completed(uint32_t*, uint32_t) override { return 0; }
  ViStatus Kick() override;
  ViStatus Check() override;
  bool Pending() override;
  int Fd() override { return tap_fd_; }
  void Arm() override;
  void Recover() override {}
  bool Validate(uint8_t*) override { return true; }

 private:
  struct Frames;
  uint32_t ReadOne(const Frames& frames, ViRx* rx);
  bool WriteOne(const ViTx* tx, uint32_t count);
  bool IsSendable(const ViTx& tx) const;
  void Settle(uint32_t bell, uint32_t packets);
  void NoteError(long error);

  Area* area_ = nullptr;
  pstn_vi* shared_ = nullptr;
  const uint64_t* bell_ = nullptr;
  int tap_fd_ = -1, bell_fd_ = -1;
};

}  // namespace postern
