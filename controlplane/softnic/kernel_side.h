// kernel_side.h - the driver's way to the kernel, for the packets that no program has a filter for.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace postern::softnic {

class KernelSide {
 public:
  virtual ~KernelSide() = default;

  virtual int fd() const = 0;  // readable when Read() has something
  // An earlier driver has left it.
  virtual bool was_there() const = 0;
  // What Read() has are packets that the card has received, and the kernel as well: copies for
  // programs. Else they are the kernel's, to be sent.
  virtual bool has_copies() const = 0;
  virtual void SetCarrier(bool on) const = 0;

  // Without blocking. Bytes of a frame, 0: there is none.
  virtual uint32_t Read(uint8_t* frame, uint32_t max) const = 0;
  // `may_be_partial`: TCP's and UDP's checksum may have been left to a card that is not there.
  // False: it was not taken.
  virtual bool Write(const uint8_t* frame, uint32_t bytes, bool may_be_partial) const = 0;

 protected:
  KernelSide() = default;
  KernelSide(const KernelSide&) = default;
  KernelSide& operator=(const KernelSide&) = default;
};

}  // namespace postern::softnic
