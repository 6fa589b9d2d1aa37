// SPDX-License-Identifier: Apache-2.0
// See wire.hpp.
#include "tests/support/wire.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "tests/support/arguments.hpp"

namespace wire_test {
namespace {

constexpr std::uint32_t kLastStatus = 66;

std::uint32_t le(std::span<const std::byte> packet, std::size_t at, std::size_t bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | std::to_integer<std::uint32_t>(packet[at + i]);
  return value;
}

bool is_batch(std::uint16_t op) {
  return op == SHMBW_OP_CREATE || op == SHMBW_OP_ATTACH || op == SHMBW_OP_RELEASE || op == SHMBW_OP_INHERIT ||
         op == SHMBW_OP_QUEUE_HOLD || op == SHMBW_OP_GPU_PUBLISH || op == SHMBW_OP_GPU_OPEN ||
         op == SHMBW_OP_GPU_REPORT || op == SHMBW_OP_GPU_RETIRE || op == SHMBW_OP_GPU_PINNED;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes.first(std::min<std::size_t>(bytes.size(), 160))) {
    out += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
    out += "0123456789abcdef"[std::to_integer<int>(b) & 15];
  }
  return out;
}

bool printable(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
}

// In each successful element: the index of its descriptor, each used once.
std::string wrong_with_elements(const RawPacket& reply) {
  auto front = reply.fixed<shmbw_batch>();
  if (front.count == 0 || front.element_size < sizeof(shmbw_outcome)) return "a batch reply without elements";
  std::vector<bool> used(reply.fds.size());
  std::size_t details = 0;
  for (std::size_t i = 0; i < front.count; ++i) {
    auto outcome = reply.element<shmbw_outcome>(i);
    if (outcome.status < 0 || outcome.status > static_cast<std::int32_t>(kLastStatus))
      return "an unknown status in an element";
    details += outcome.detail_len;
    if (outcome.fd_index == SHMBW_NO_FD) continue;
    if (outcome.status != 0) return "a descriptor with an element that failed";
    if (outcome.fd_index >= used.size() || used[outcome.fd_index]) return "a descriptor index that points nowhere";
    used[outcome.fd_index] = true;
  }
  if (std::ranges::count(used, true) != static_cast<long>(used.size())) return "descriptors of no element";
  if (reply.rest().size() != front.count * front.element_size + details)
    return "a batch reply whose sizes do not add up";
  for (std::size_t i = 0; i < front.count; ++i) {
    if (reply.element<shmbw_outcome>(i).status == 0) continue;
    if (reply.element<shmbw_outcome>(i).detail_len <= sizeof(shmbw_refusal)) continue;  // no room in a full batch
    if (!printable(error_of_element(reply, i).sentence)) return "an element's error without a sentence";
  }
  return {};
}

}  // namespace

bool thorough() {
  static const bool given = support::has_argument("--all");
  return given;
}

void append(Packet& packet, const void* data, std::size_t size) {
  auto* bytes = static_cast<const std::byte*>(data);
  packet.insert(packet.end(), bytes, bytes + size);
}

shmbw_header header_of(std::span<const std::byte> packet) {
  shmbw_header header{};
  std::memcpy(&header, packet.data(), std::min(sizeof header, packet.size()));
  return header;
}

void set_header(Packet& packet, const shmbw_header& header) {
  std::memcpy(packet.data(), &header, std::min(sizeof header, packet.size()));
}

// How many descriptors a request states by its op and its words: by PROTOCOL.md's tables, at its offsets.
static std::uint64_t stated_descriptors(std::span<const std::byte> packet, std::uint32_t op, std::uint32_t fixed,
                                        std::size_t brought) {
  // Fields that a short struct leaves out read as zero.
  auto word = [&](std::size_t begin, std::size_t size, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4 && at + i < size; ++i)
      value |= std::to_integer<std::uint32_t>(packet[begin + at + i]) << 8 * i;
    return value;
  };
  if (op == SHMBW_OP_POOL_DOORBELL) return word(24, fixed, 8) == SHMBW_DOORBELL_SET ? 1 : 0;
  if (op == SHMBW_OP_GPU_DEVICE) {
    const std::uint32_t flags = word(24, fixed, 16);
    return flags > 1 ? std::min<std::size_t>(brought, 1) : flags;  // unknown flags may state one, and are refused
  }
  if (op == SHMBW_OP_GPU_CHUNKS) return 2 * std::uint64_t{word(24, fixed, 20)};
  if (op != SHMBW_OP_GPU_PUBLISH) return 0;
  for (std::size_t i = 8; i < fixed; ++i)
    if (packet[24 + i] != std::byte{0}) return 0;  // a batch that does not open states nothing
  if (word(24, fixed, 4) != 0) return 0;
  const std::uint32_t front = word(24, fixed, 0), count = front & 0xffff, size = front >> 16;
  const std::size_t begin = 24 + fixed;
  if (count == 0 || count > 253 || size == 0 || std::size_t{count} * size > packet.size() - begin) return 0;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t element = begin + i * size;
    sum += 2 * std::uint64_t{word(element, size, 76)} + ((word(element, size, 68) & 0x80) != 0 ? 1 : 0);
  }
  return sum;
}

bool breaks_the_frame(std::span<const std::byte> packet, bool greeted, std::size_t brought) {
  if (packet.size() < 24 || packet.size() > 65536) return true;
  if (le(packet, 0, 4) != packet.size()) return true;
  std::uint32_t op = le(packet, 4, 2);
  if ((op & 0xc000) != 0) return true;
  if (le(packet, 20, 2) != brought) return true;
  std::uint32_t fixed = le(packet, 22, 2);
  if (fixed > packet.size() - 24) return true;
  if (greeted && stated_descriptors(packet, op, fixed, brought) != brought) return true;
  return !greeted && op != SHMBW_OP_HELLO;
}

bool may_be_silent(std::span<const std::byte> packet) {
  shmbw_header header = header_of(packet);
  const bool one_way = header.op == SHMBW_OP_READY || header.op == SHMBW_OP_LANE_FINISHED;
  if ((header.flags & SHMBW_HEADER_NO_REPLY) != 0)
    return one_way || header.op == SHMBW_OP_RELEASE || header.op == SHMBW_OP_QUEUE_HOLD ||
           header.op == SHMBW_OP_REF_RELEASE || header.op == SHMBW_OP_REF_SETTLE || header.op == SHMBW_OP_GPU_REPORT;
  return one_way && (header.flags & ~SHMBW_HEADER_KNOWN) == 0;
}

std::string wrong_with(const RawPacket& reply, std::span<const std::byte> request) {
  auto fault = [&](const std::string& what) {
    return what + "; request " + hex(request) + ", reply " + hex(reply.bytes);
  };
  shmbw_header asked = header_of(request), header = reply.header();
  if (reply.descriptors_lost) return fault("descriptors were lost");
  if (reply.bytes.size() < sizeof header || header.size != reply.bytes.size()) return fault("a reply of a wrong size");
  if (header.op != (asked.op | SHMBW_REPLY)) return fault("a reply to another request");
  if (header.tag != asked.tag) return fault("a reply with another tag");
  if (header.n_fds != reply.fds.size()) return fault("a reply that lies about its descriptors");
  if (header.fixed > header.size - sizeof header) return fault("a reply with too long a fixed part");
  if (header.flags != 0) return fault("a reply with flags");
  if (header.status < 0 || header.status > static_cast<std::int32_t>(kLastStatus)) return fault("an unknown status");
  if (header.status == 0) {
    if (!is_batch(asked.op)) return {};
    std::string wrong = wrong_with_elements(reply);
    return wrong.empty() ? wrong : fault(wrong);
  }
  if (!reply.fds.empty()) return fault("an error reply with descriptors");
  if (header.fixed != sizeof(shmbw_refusal)) return fault("an error reply without a refusal");
  if (!printable(reply.rest())) return fault("an error reply without a printable sentence");
  return {};
}

shmb::Error error_of(const RawPacket& reply) {
  return shmb::wire::from_wire(static_cast<shmb::Status>(reply.status()), reply.fixed<shmbw_refusal>(), reply.rest());
}

shmb::Error error_of_element(const RawPacket& reply, std::size_t index) {
  if (reply.status() != 0) return error_of(reply);
  auto front = reply.fixed<shmbw_batch>();
  std::size_t at = std::size_t{front.count} * front.element_size;
  for (std::size_t i = 0; i < index; ++i) at += reply.element<shmbw_outcome>(i).detail_len;
  auto outcome = reply.element<shmbw_outcome>(index);
  std::string_view rest = reply.rest();
  return shmb::wire::read_element_detail(outcome.status, at < rest.size() ? rest.substr(at, outcome.detail_len) : "");
}

std::string wrong_with_sentence(const shmb::Error& error) {
  const std::string& sentence = error.sentence;
  auto lacks = [&](const std::string& what) { return "'" + sentence + "' lacks " + what; };
  if (!printable(sentence)) return lacks("printable text");
  if (sentence.size() < 12 || sentence.find(' ') == sentence.npos) return lacks("a sentence");
  if (error.status != shmb::Status::limit && error.status != shmb::Status::no_descriptors) return {};
  // Where the kernel refused, not the broker, there are no numbers; its word for it is in the sentence.
  if (error.system_errno != 0) return sentence.find("(E") == sentence.npos ? lacks("the kernel's error") : "";
  const shmb::Shortage& numbers = error.shortage;
  if (numbers.slot == 0 || numbers.scope == 0) return lacks("slot and scope beside it");
  if (numbers.asked == 0 || numbers.used + numbers.asked <= numbers.limit) return lacks("numbers that explain it");
  if (sentence.find("limit") == sentence.npos) return lacks("the word limit");
  if (sentence.find("asked") == sentence.npos) return lacks("what was asked");
  const bool is_time = numbers.slot == SHMBW_SLOT_KEEP || numbers.slot == SHMBW_SLOT_LIFETIME;
  if (!is_time && sentence.find("used") == sentence.npos) return lacks("what is used");
  if (sentence.find("raise ") == sentence.npos && sentence.find("with a higher limit") == sentence.npos)
    return lacks("what to change");
  if (numbers.slot == SHMBW_SLOT_BYTES) {
    if (sentence.find(shmb::format_size(numbers.asked)) == sentence.npos) return lacks("the size asked for");
  } else if (!is_time && sentence.find(std::to_string(numbers.limit)) == sentence.npos) {
    return lacks("the limit");
  }
  return {};
}

std::string Books::text() const {
  if (!answered) return "no answer";
  return std::to_string(regions) + " regions, " + std::to_string(bytes) + " bytes, " + std::to_string(leases) +
         " leases, " + std::to_string(tickets) + " tickets, " + std::to_string(watches) + " watches, " +
         std::to_string(groups) + " groups, " + std::to_string(sessions) + " sessions";
}

Books books_of(const BrokerFixture& broker) {
  RawClient admin = RawClient::connect(broker.admin());
  if (!admin.connected() || !admin.hello().ok()) return {};
  RawPacket answer = admin.status();
  if (!answer.ok()) return {};
  auto now = answer.fixed<shmbw_status_reply>();
  return {now.regions, now.bytes, now.leases, now.tickets, now.watches, now.groups, now.sessions - 1, true};
}

std::size_t descriptors_at_rest(const BrokerFixture& broker) {
  std::size_t last = broker.descriptors();
  for (int same = 0; same < 10;) {
    ::usleep(10'000);
    std::size_t now = broker.descriptors();
    same = now == last ? same + 1 : 0;
    last = now;
  }
  return last;
}

std::string settled(const BrokerFixture& broker, const Books& books, std::size_t descriptors, int milliseconds) {
  std::string wrong;
  for (int waited = 0; waited <= milliseconds; waited += 10) {
    wrong.clear();
    // First, because the connection that asks for the books has descriptors too.
    std::size_t open = broker.descriptors();
    if (open > descriptors) wrong = std::to_string(open) + " descriptors instead of " + std::to_string(descriptors);
    if (wrong.empty())
      if (Books now = books_of(broker); now != books) wrong = "books: " + now.text() + " instead of " + books.text();
    if (wrong.empty()) return {};
    ::usleep(10'000);
  }
  return wrong;
}

void end_groups(const BrokerFixture& broker, std::uint64_t except) {
  RawClient owner = RawClient::connect(broker.socket());
  if (!owner.hello().ok()) return;
  std::vector<std::uint64_t> groups;
  list_all<shmbw_group_record>(owner, SHMBW_TABLE_GROUPS, [&](const shmbw_group_record& record) {
    if (record.group != except) groups.push_back(record.group);
  });
  for (std::uint64_t group : groups) {
    shmbw_group_end end{};
    end.group = group;
    end.flags = SHMBW_END_RELEASE_KEPT;
    (void)owner.call(SHMBW_OP_GROUP_END, end);
  }
}

}  // namespace wire_test
