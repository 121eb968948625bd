// SPDX-License-Identifier: Apache-2.0
// clc_fuzz.cc - CLC messages from a hostile peer: no read outside, and what is accepted survives
// encoding: parse(encode(parse(x))) == parse(x), with the length of x.
//
// The first byte of the input chooses: the rest as it is, or a captured message (or the longest
// there is) changed at places that the rest names, so that random inputs get past the eyecatcher.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include "../unit/smcd/clc_vectors.h"
#include "replay.h"

namespace postern {
namespace {

[[maybe_unused]] constexpr size_t kInputMax = 64;

std::vector<uint8_t> Longest() {
  ClcProposal p;
  p.path_v1 = p.path_v2 = ClcPath::kBoth;
  p.has_v2 = p.has_smcd = 1;
  p.v1.prefix_count = p.ueid_count = p.entry_count = 8;
  std::vector<uint8_t> bytes(kClcMessageBytesMax);
  bytes.resize(ClcEncodeProposal(p, bytes));
  return bytes;
}

std::vector<uint8_t> Changed(std::vector<uint8_t> bytes, std::span<const uint8_t> in) {
  for (; in.size() >= 3; in = in.subspan(3)) {
    const size_t pos = (in[0] | static_cast<size_t>(in[1] & 0x3fu) << 8) % bytes.size();
    switch (in[1] >> 6) {
      case 0:
        bytes[pos] = in[2];
        break;
      case 1:
        bytes[pos] ^= static_cast<uint8_t>(1u << (in[2] & 7u));
        break;
      case 2: {  // another length, and a header that says so
        bytes.resize(12 + pos);
        bytes[5] = static_cast<uint8_t>(bytes.size() >> 8);
        bytes[6] = static_cast<uint8_t>(bytes.size());
        if (in[2] % 2 == 0) memcpy(bytes.data() + bytes.size() - 4, bytes.data(), 4);
        break;
      }
      default:  // counts and offsets that are nearly right
        bytes[pos] = static_cast<uint8_t>(bytes[pos] + in[2] % 5 - 2);
    }
  }
  return bytes;
}

std::vector<uint8_t> Input(const uint8_t* data, size_t size) {
  using namespace clc_vectors;  // NOLINT(google-build-using-namespace): a list of test data
  const char* const captured[] = {kProposal,         kAcceptFirst,    kConfirmFirst,
                                  kAcceptKnown,      kConfirmKnown,   kDeclineNoDevice,
                                  kDeclineNoUeid,    kSmcrProposal,   kSmcrAcceptFirst,
                                  kSmcrConfirmFirst, kSmcrAcceptKnown};
  constexpr size_t kCaptured = sizeof captured / sizeof captured[0];
  const std::span<const uint8_t> rest(data + 1, size - 1);
  const size_t which = data[0] % (kCaptured + 2);
  if (which < kCaptured) return Changed(BytesOfHex(captured[which]), rest);
  if (which == kCaptured) return Changed(Longest(), rest);
  return {rest.begin(), rest.end()};
}

// `Parse` and `Encode` of one type of message.
template <typename T, typename ParseFn, typename EncodeFn>
void RoundTrip(std::span<const uint8_t> bytes, const T& empty, ParseFn parse, EncodeFn encode) {
  T value = empty, back = empty;
  const ClcResult result = parse(bytes, value);
  FUZZ_CHECK((result.verdict == ClcVerdict::kAbort) == (result.abort != ClcAbort::kNone));
  FUZZ_CHECK((result.verdict == ClcVerdict::kDecline) == (result.diagnosis != 0));
  if (!result.ok()) return;
  std::vector<uint8_t> out(bytes.size());  // exactly: nothing may be written beyond
  FUZZ_CHECK(encode(value, out) == bytes.size());
  FUZZ_CHECK(parse(out, back).ok());
  FUZZ_CHECK(back == value);
  std::vector<uint8_t> again(bytes.size());
  FUZZ_CHECK(encode(back, again) == bytes.size());
  FUZZ_CHECK(again == out);
  out.resize(bytes.size() - 1);
  FUZZ_CHECK(encode(value, out) == 0);
}

void One(std::span<const uint8_t> bytes) {
  if (bytes.size() >= kClcPeekBytes) {
    ClcHead head;
    if (ClcPeek(bytes.first<kClcPeekBytes>(), head).ok())
      FUZZ_CHECK(head.len_bytes >= 28 && head.len_bytes <= kClcMessageBytesMax);
  }
  RoundTrip(bytes, ClcProposal{}, ClcParseProposal, ClcEncodeProposal);
  RoundTrip(bytes, ClcDecline{}, ClcParseDecline, ClcEncodeDecline);
  ClcAccept confirm;
  RoundTrip(bytes, confirm, ClcParseAccept, ClcEncodeAccept);
  confirm.type = ClcType::kConfirm;
  RoundTrip(bytes, confirm, ClcParseAccept, ClcEncodeAccept);
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A vector of exactly the message's size, so that a sanitizer sees a byte too many.
  if (size > 0) {
    std::vector<uint8_t> bytes = postern::Input(data, size);
    bytes.shrink_to_fit();
    postern::One(bytes);
  }
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::kInputMax); }
#endif
