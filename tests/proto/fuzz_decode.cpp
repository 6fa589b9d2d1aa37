// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes, read as any message, or as a name. Bytes that decode must decode to the same again after they
// were written by the codec. Built only with -Dfuzz=true and clang (docs/testing.md, Long runs).
//
// The first two bytes of an input steer, so that one input costs one message: direction, table, descriptors, or which
// text it is. Structs are read by their types, texts are views, and what holds them is used again, so an input
// allocates nothing. The vectors and the tests of growth read the same bytes in another way, by tables of all structs
// (any_message.hpp). What was reached is printed every 10 million inputs and at the end.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "proto/names.hpp"
#include "proto/refusal.hpp"
#include "proto/wire_fields.hpp"
#include "proto/wire_traits.hpp"

namespace {

using namespace shmb;
using namespace shmb::wire;

using Texts = std::vector<std::string_view>;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

template <class T>
bool same_bytes(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Calls `text` with the length of each text of a struct, and then with that of its detail if it has one.
template <class T, class Text>
void for_texts(T fields, Text&& text) {
  if constexpr (requires { visit_texts(fields, [](const char*, auto) {}); })
    visit_texts(fields, [&](const char*, std::size_t length) { text(length); });
  if constexpr (requires { fields.outcome; })
    if (fields.outcome.detail_len != 0) text(fields.outcome.detail_len);
}

// `take` cuts them off the packet: TextReader::take or RecordReader::text.
template <class T, class Take>
bool take_texts(const T& fields, Texts& texts, Take&& take) {
  bool all = true;
  for_texts(fields, [&](std::size_t length) {
    if (!all) return;
    const std::optional<std::string_view> text = take(length);
    all = text.has_value();
    if (all) texts.push_back(*text);
  });
  if constexpr (requires { fields.outcome; })
    if (all && fields.outcome.detail_len != 0) (void)read_element_detail(fields.outcome.status, texts.back());
  return all;
}

template <class T>
void write_texts(Writer& writer, const T& fields, Texts::const_iterator& next) {
  for_texts(fields, [&](std::size_t) { writer.text(*next++); });
}

template <class T>
struct Plain {
  T fixed{};
  Texts texts;
  [[gnu::noinline]] bool read(const PacketView& view) {
    texts.clear();
    auto read = read_struct<T>(view.fixed);
    if (!read) return false;
    fixed = *read;
    TextReader rest(view.rest);
    return take_texts(fixed, texts, [&](std::size_t length) { return rest.take(length); }) && rest.done();
  }
  [[gnu::noinline]] void write(Writer& writer, const shmbw_header& header) const {
    writer.begin(header.op, header.tag, Status::ok, fixed, header.flags);
    auto next = texts.begin();
    write_texts(writer, fixed, next);
  }
  bool same(const Plain& other) const { return same_bytes(fixed, other.fixed) && texts == other.texts; }
};

template <class T>
bool same_all(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same_bytes<T>);
}

template <class T>
struct Batch {
  std::vector<T> elements;
  Texts texts;
  [[gnu::noinline]] bool read(const PacketView& view) {
    elements.clear();
    texts.clear();
    auto batch = BatchView::open(view);
    if (!batch) return false;
    for (std::size_t i = 0; i < batch->count(); ++i) {
      auto element = batch->template element<T>(i);
      if (!element) return false;
      elements.push_back(*element);
    }
    TextReader rest = batch->texts();
    for (const T& element : elements)
      if (!take_texts(element, texts, [&](std::size_t length) { return rest.take(length); })) return false;
    return rest.done();
  }
  [[gnu::noinline]] void write(Writer& writer, const shmbw_header& header) const {
    writer.begin_batch<T>(header.op, header.tag, elements.size(), header.flags);
    for (std::size_t i = 0; i < elements.size(); ++i) writer.element(i, elements[i]);
    auto next = texts.begin();
    for (const T& element : elements) write_texts(writer, element, next);
  }
  bool same(const Batch& other) const { return same_all(elements, other.elements) && texts == other.texts; }
};

template <class Record>
struct List {
  shmbw_list_reply page{};
  std::vector<Record> records;
  Texts texts;
  [[gnu::noinline]] bool read(const PacketView& view) {
    records.clear();
    texts.clear();
    auto read = read_struct<shmbw_list_reply>(view.fixed);
    if (!read) return false;
    page = *read;
    RecordReader rest(view.rest, page.element_size);
    for (std::size_t i = 0; i < page.count; ++i) {
      auto record = rest.next<Record>();
      if (!record) return false;
      records.push_back(*record);
      if (!take_texts(*record, texts, [&](std::size_t length) { return rest.text(length); })) return false;
    }
    page.element_size = sizeof(Record);  // as it is written
    return rest.done();
  }
  [[gnu::noinline]] void write(Writer& writer, const shmbw_header& header) const {
    writer.begin(header.op, header.tag, Status::ok, page, header.flags);
    auto next = texts.begin();
    for (const Record& record : records) {
      writer.append(record);
      write_texts(writer, record, next);
    }
  }
  bool same(const List& other) const {
    return same_bytes(page, other.page) && same_all(records, other.records) && texts == other.texts;
  }
};

// All but the sizes, which a sender of another age sets otherwise.
bool same_header(const shmbw_header& a, const shmbw_header& b) {
  return a.op == b.op && a.flags == b.flags && a.tag == b.tag && a.status == b.status && a.n_fds == b.n_fds;
}

struct Counts {
  unsigned long long inputs = 0, texts = 0, refusals = 0, messages = 0, of_gpus = 0;  // the last three: whole ones
  void print() const {
    std::fprintf(stderr, "%llu inputs: %llu texts, %llu refusals, %llu messages, %llu of them about GPU memory\n",
                 inputs, texts, refusals, messages, of_gpus);
  }
} counts;

std::array<std::byte, SHMBW_MAX_MESSAGE> written;

// The packet once more, as the codec has written it. Nothing if it does not fit: the structs of today are longer than
// the sender's.
std::optional<PacketView> read_again(Bytes packet, const shmbw_header& header, Direction direction) {
  if (packet.empty()) return std::nullopt;
  auto again = open_packet(packet, header.n_fds, direction);
  require(again.has_value(), "the codec does not open what it wrote");
  require(same_header(header, again->header), "a header changed on its way through the codec");
  return *again;
}

// None of it is inlined, because a compiler with three sanitizers takes minutes for one large function.
template <class Form>
[[gnu::noinline]] void there_and_back(const PacketView& view, Direction direction) {
  static Form first, second;
  if (!first.read(view)) return;
  Writer writer(written);
  first.write(writer, view.header);
  const auto again = read_again(writer.finish(view.header.n_fds), view.header, direction);
  if (!again) return;
  require(second.read(*again), "what the codec wrote it does not read");
  require(first.same(second), "a message changed on its way through the codec");
  ++counts.messages;
  counts.of_gpus += std::string_view(traits_of(view.header.op & 0x3fff).name).starts_with("GPU_");
}

void refusal_there_and_back(const PacketView& view) {
  const Error error = read_error_reply(view);
  // A sentence is cut at the length that the broker may send.
  if (view.header.flags != 0 || view.header.n_fds != 0 || error.sentence.size() > kMaxSentence) return;
  const Bytes packet = write_error_reply(written, view.header.op, view.header.tag, error);
  const auto again = read_again(packet, view.header, Direction::from_broker);
  require(again.has_value(), "a refusal does not fit into a packet");
  const Error second = read_error_reply(*again);
  require(same_bytes(to_wire(error), to_wire(second)) && error.sentence == second.sentence,
          "a refusal changed on its way through the codec");
  ++counts.refusals;
}

void list_there_and_back(const PacketView& view, std::uint32_t table) {
  switch (table) {
#define X(number, name, batch) \
  case number:                 \
    return there_and_back<List<shmbw_##name>>(view, Direction::from_broker);
    SHMBW_RECORDS(X)
#undef X
  }
}

template <bool is_batch, class T>
void message_there_and_back(const PacketView& view, Direction direction, std::uint32_t table) {
  if constexpr (std::is_same_v<T, shmbw_list_reply>) list_there_and_back(view, table);
  else if constexpr (is_batch) there_and_back<Batch<T>>(view, direction);
  else there_and_back<Plain<T>>(view, direction);
}

// A status that is not 0 stands in replies alone.
void any_message(const PacketView& view, Direction direction, std::uint32_t table) {
  if ((view.header.flags & ~SHMBW_HEADER_KNOWN) != 0 || view.header.n_fds > SHMBW_MAX_BATCH) return;
  if (view.header.status != 0) {
    if ((view.header.op & SHMBW_REPLY) != 0) refusal_there_and_back(view);
    return;
  }
  switch (view.header.op) {
#define X(number, name, batch) \
  case number:                 \
    return message_there_and_back<batch, shmbw_##name>(view, direction, table);
    SHMBW_REQUESTS(X)
#undef X
#define X(number, name, batch) \
  case SHMBW_REPLY | number:   \
    return message_there_and_back<batch, shmbw_##name##_reply>(view, direction, table);
    SHMBW_REPLIES(X)
#undef X
#define X(number, name, batch) \
  case SHMBW_EVENT | number:   \
    return message_there_and_back<batch, shmbw_##name##_event>(view, direction, table);
    SHMBW_EVENTS(X)
#undef X
  }
}

void any_text(std::uint8_t which, std::string_view text) {
  switch (which) {
    case 0:
      if (names::check(text, "name"))
        require(!text.empty() && text.size() <= names::kMaxName, "a name of a wrong length passed");
      return;
    case 1:
      return static_cast<void>(names::parse_region(text));
    case 2:
      return static_cast<void>(names::parse_group(text));
    case 3:
      return static_cast<void>(names::parse_group_variable(text));
    case 4:
      if (auto label = names::parse_memfd_name(text))
        require(names::memfd_name(*label) == text, "a label reads back otherwise");
      return;
    case 5:
      if (std::uint8_t token[16]; names::parse_token(text, token))
        require(names::format_token(token) == text, "a token reads back otherwise");
      return;
  }
}

// The longest input. It stands at the end of this array, so that a read behind it is one behind the array.
std::array<std::byte, 1 << 17> input;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  std::atexit([] { counts.print(); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (++counts.inputs % 10'000'000 == 0) counts.print();
  if (size < 2 || size - 2 > input.size()) return 0;
  const std::uint8_t steer = data[0], second = data[1];
  size -= 2;
  if ((steer & 0x40) != 0) {
    ++counts.texts;
    any_text(second & 7, {reinterpret_cast<const char*>(data) + 2, size});
    return 0;
  }
  std::byte* packet = input.data() + (input.size() - size);
  std::memcpy(packet, data + 2, size);
  // The size field is made true, because behind a wrong one nothing is reached.
  const auto true_size = static_cast<std::uint32_t>(size);
  if ((steer & 0x80) != 0 && size >= sizeof true_size) std::memcpy(packet, &true_size, sizeof true_size);
  const Direction direction = (steer & 1) != 0 ? Direction::from_broker : Direction::request;
  if (auto view = open_packet({packet, size}, second, direction)) any_message(*view, direction, (steer >> 1) & 31);
  return 0;
}
