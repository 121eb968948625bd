// SPDX-License-Identifier: Apache-2.0
// vi_forward.h - a VI that passes every call on to another: what decorators begin with.
#pragma once
#include "vi/vi.h"

namespace postern {

class ForwardVi : public Vi {
 public:
  pstn_vi& shared() override { return inner_.shared(); }
  uint32_t Receive(ViRx* rx, uint32_t max) override { return inner_.Receive(rx, max); }
  uint32_t RefillRoom() override { return inner_.RefillRoom(); }
  uint32_t Refill(const uint32_t* frames, uint32_t count) override {
    return inner_.Refill(frames, count);
  }
  uint32_t SendRoom(uint32_t queue) override { return inner_.SendRoom(queue); }
  uint32_t Send(const ViTx* tx, uint32_t count) override { return inner_.Send(tx, count); }
  uint32_t Completed(uint32_t* frames, uint32_t max) override {
    return inner_.Completed(frames, max);
  }
  ViStatus Kick() override { return inner_.Kick(); }
  ViStatus Check() override { return inner_.Check(); }
  bool Pending() override { return inner_.Pending(); }
  int Fd() override { return inner_.Fd(); }
  void Arm() override { inner_.Arm(); }
  void Recover() override { inner_.Recover(); }
  bool Validate(uint8_t* seen) override { return inner_.Validate(seen); }

 protected:
  explicit ForwardVi(Vi& inner) : inner_(inner) {}
  ~ForwardVi() = default;
  Vi& inner_;
};

}  // namespace postern
