// SPDX-License-Identifier: Apache-2.0
// vi_pcap.h - a VI over another that writes what passes into a pcapng file, both directions.
//
// One section, one interface (Ethernet, time stamps in nanoseconds), one enhanced packet block for
// each packet, its direction in epb_flags: what Wireshark and tcpdump read
// (draft-ietf-opsawg-pcapng). A packet of several frames is one block if its parts are in one call.
// A system call for each packet: for tests and for looking, not for speed. What is sent is written
// when it is handed to the VI.
#pragma once
#include "vi/decorator/vi_forward.h"
#include "vi/packet_area.h"

namespace postern {

class PcapVi final : public ForwardVi {
 public:
  using Clock = uint64_t (*)(void* context);  // nanoseconds since 1970, or of a test's own time

  // Writes to `fd`, which stays the caller's. `name` is shown as the interface's.
  PcapVi(Vi& inner, Area& area, int fd, const char* name, Clock clock, void* context);
  // What went wrong with the file first, -errno; packets pass all the same.
  int error() const { return error_; }

  uint32_t Receive(ViRx* rx, uint32_t max) override;
  uint32_t Send(const ViTx* tx, uint32_t count) override;

 private:
  struct Part {
    const uint8_t* data;
    uint32_t bytes;
  };
  static constexpr uint32_t kPartsMax = 18;  // MAX_SKB_FRAGS and one

  void WriteHeader(const char* name);
  void WritePacket(const Part* parts, uint32_t count, uint32_t direction);

  Area& area_;
  const int fd_;
  const Clock clock_;
  void* const context_;
  int error_ = 0;
};

}  // namespace postern
