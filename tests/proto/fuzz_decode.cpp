// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes, read as any message. Bytes that decode must decode to the same again after it was written by
// the codec; names and labels in it must not crash their readers. Built only with -Dfuzz=true and clang
// (docs/testing.md, Long runs).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "tests/proto/any_message.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

bool same(const test::Part& a, const test::Part& b) { return a.texts == b.texts && a.detail == b.detail; }

// All but the sizes, which a sender of another age sets otherwise.
bool same(const test::Message& a, const test::Message& b) {
  if (a.header.op != b.header.op || a.header.flags != b.header.flags || a.header.tag != b.header.tag ||
      a.header.status != b.header.status || a.header.n_fds != b.header.n_fds || a.sentence != b.sentence)
    return false;
  if (a.parts.size() != b.parts.size() || !same(a.fixed, b.fixed)) return false;
  if (!a.is_batch && !a.is_list && a.fixed.fields != b.fixed.fields) return false;
  for (std::size_t i = 0; i < a.parts.size(); ++i)
    if (a.parts[i].fields != b.parts[i].fields || !same(a.parts[i], b.parts[i])) return false;
  return true;
}

void try_text(std::string_view text) {
  if (names::check(text, "name"))
    require(!text.empty() && text.size() <= names::kMaxName, "a name of a wrong length passed");
  (void)names::parse_region(text);
  (void)names::parse_group(text);
  (void)names::parse_group_variable(text);
  if (auto label = names::parse_memfd_name(text))
    require(names::memfd_name(*label) == text, "a label reads back otherwise");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  // Two bytes of steering: direction, table, descriptors, and whether the size field is made true, because behind a
  // wrong one nothing is reached.
  const std::uint8_t steer = data[0], n_fds = data[1];
  auto* first = reinterpret_cast<const std::byte*>(data + 2);
  std::vector<std::byte> packet(first, first + (size - 2));
  packet.shrink_to_fit();
  const auto true_size = static_cast<std::uint32_t>(packet.size());
  if ((steer & 0x80) != 0 && packet.size() >= 4) std::memcpy(packet.data(), &true_size, sizeof true_size);
  const Direction direction = (steer & 1) != 0 ? Direction::from_broker : Direction::request;
  const std::uint32_t table = (steer >> 1) & 31;

  // A name is at most 96 bytes long: what is behind 256 would only cost time.
  try_text({reinterpret_cast<const char*>(packet.data()), std::min(packet.size(), std::size_t{256})});
  test::Decoded decoded = test::decode(packet, n_fds, direction, table);
  if (!std::holds_alternative<test::Message>(decoded)) return 0;
  const test::Message& message = std::get<test::Message>(decoded);
  for (const test::Part& part : message.parts) {
    for (const std::string& text : part.texts) try_text(text);
    if (part.detail) (void)read_element_detail(SHMB_E_LIMIT, *part.detail);
  }
  if (message.header.n_fds > SHMBW_MAX_BATCH) return 0;

  static std::vector<std::byte> buffer(1 << 20);
  Bytes written = test::encode(message, buffer);
  if (written.empty()) return 0;  // the structs of today are longer than the sender's: too long for a packet
  test::Decoded again = test::decode(written, message.header.n_fds, direction, table);
  require(std::holds_alternative<test::Message>(again), "what the codec wrote it does not read");
  require(same(message, std::get<test::Message>(again)), "a message changed on its way through the codec");
  return 0;
}
