// SPDX-License-Identifier: Apache-2.0
// The walk over a message is written once for all of them; the generated wire_fields.hpp names the fields.
#include "tests/proto/any_message.hpp"

#include "base/text.hpp"
#include "proto/refusal.hpp"

namespace shmb::wire::test {
namespace {

using json = nlohmann::ordered_json;

std::string hex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes) {
    out += "0123456789abcdef"[c >> 4];
    out += "0123456789abcdef"[c & 15];
  }
  return out;
}

json text_json(const std::string& text) {
  try {
    json(text).dump();  // throws when it is not UTF-8
    return text;
  } catch (const json::exception&) {
    return {{"bytes", hex(text)}};
  }
}

template <class T>
T typed(const std::string& fields) {
  T out;
  std::memcpy(&out, fields.data(), sizeof out);
  return out;
}

template <class T>
std::string untyped(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// std::expected::transform is missing in GCC 12.
template <class T>
std::expected<std::string, Status> untyped_or_status(const std::expected<T, Status>& value) {
  if (!value) return std::unexpected(value.error());
  return untyped(*value);
}

template <class T>
json fields_json(T value) {
  json out = json::object();
  visit_fields(value, [&](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_arithmetic_v<Field>) out[name] = field;
    else if constexpr (std::is_array_v<Field>)
      out[name] = hex(std::string(reinterpret_cast<const char*>(field), sizeof field));
    else out[name] = fields_json(field);
  });
  return out;
}

template <class T>
constexpr Shape kShape{
    nullptr,
    sizeof(T),
    [](Bytes from) { return untyped_or_status(read_struct<T>(from)); },
    [](const BatchView& batch, std::size_t index) { return untyped_or_status(batch.element<T>(index)); },
    [](RecordReader& records) { return untyped_or_status(records.next<T>()); },
    [](const std::string& fields) {
      T value = typed<T>(fields);
      std::vector<std::pair<const char*, std::size_t>> texts;
      if constexpr (requires { visit_texts(value, [](const char*, auto) {}); })
        visit_texts(value, [&](const char* name, std::size_t length) { texts.emplace_back(name, length); });
      return texts;
    },
    [](const std::string& fields) {
      std::size_t length = 0;
      if constexpr (requires(T value) { value.outcome; }) length = typed<T>(fields).outcome.detail_len;
      return length;
    },
    [](Writer& writer, const shmbw_header& header, const std::string& fields) {
      writer.begin(header.op, header.tag, static_cast<Status>(header.status), typed<T>(fields), header.flags);
    },
    [](Writer& writer, const shmbw_header& header, std::size_t count) {
      writer.begin_batch<T>(header.op, header.tag, count, header.flags);
    },
    [](Writer& writer, std::size_t index, const std::string& fields) { writer.element(index, typed<T>(fields)); },
    [](Writer& writer, const std::string& fields) { writer.append(typed<T>(fields)); },
    [](const std::string& fields) { return fields_json(typed<T>(fields)); },
};

struct Kind {
  Shape shape;
  bool is_batch;
};

template <class T>
Kind kind(const char* name, bool is_batch) {
  Kind kind{kShape<T>, is_batch};
  kind.shape.name = name;
  return kind;
}

const Kind* find(std::uint16_t op, std::uint16_t bits) {
  switch (op | bits) {
#define X(number, name, batch)                                  \
  case number: {                                                \
    static const Kind known = kind<shmbw_##name>(#name, batch); \
    return &known;                                              \
  }
    SHMBW_REQUESTS(X)
#undef X
#define X(number, name, batch)                                          \
  case SHMBW_REPLY | number: {                                          \
    static const Kind known = kind<shmbw_##name##_reply>(#name, batch); \
    return &known;                                                      \
  }
    SHMBW_REPLIES(X)
#undef X
#define X(number, name, batch)                                          \
  case SHMBW_EVENT | number: {                                          \
    static const Kind known = kind<shmbw_##name##_event>(#name, batch); \
    return &known;                                                      \
  }
    SHMBW_EVENTS(X)
#undef X
    default:
      return nullptr;
  }
}

const Shape* find_record(std::uint32_t table) {
  switch (table) {
#define X(number, name, batch)                                  \
  case number: {                                                \
    static const Kind known = kind<shmbw_##name>(#name, batch); \
    return &known.shape;                                        \
  }
    SHMBW_RECORDS(X)
#undef X
    default:
      return nullptr;
  }
}

// Texts, then the detail, for one part. `take` is TextReader::take or RecordReader::text.
template <class Take>
bool take_texts(Part& part, Take&& take) {
  for (auto [name, length] : part.shape->texts(part.fields)) {
    std::optional<std::string_view> text = take(length);
    if (!text) return false;
    part.texts.emplace_back(*text);
  }
  if (std::size_t length = part.shape->detail(part.fields)) {
    std::optional<std::string_view> detail = take(length);
    if (!detail) return false;
    part.detail = std::string(*detail);
  }
  return true;
}

std::expected<Part, Status> part_of(const Shape& shape, std::expected<std::string, Status> fields) {
  if (!fields) return std::unexpected(fields.error());
  return Part{&shape, std::move(*fields), {}, {}};
}

Decoded decode_batch(Message message, const PacketView& view, const Shape& shape) {
  auto batch = BatchView::open(view);
  if (!batch) return batch.error();
  message.is_batch = true;
  message.fixed = *part_of(kShape<shmbw_batch>, kShape<shmbw_batch>.read(view.fixed));
  for (std::size_t i = 0; i < batch->count(); ++i) {
    auto part = part_of(shape, shape.read_element(*batch, i));
    if (!part) return part.error();
    message.parts.push_back(std::move(*part));
  }
  TextReader texts = batch->texts();
  for (Part& part : message.parts)
    if (!take_texts(part, [&](std::size_t length) { return texts.take(length); })) return Status::invalid;
  if (!texts.done()) return Status::invalid;
  return message;
}

Decoded decode_plain(Message message, const PacketView& view, const Shape& shape, std::uint32_t table) {
  auto fixed = part_of(shape, shape.read(view.fixed));
  if (!fixed) return fixed.error();
  message.fixed = std::move(*fixed);
  TextReader texts(view.rest);
  if (!take_texts(message.fixed, [&](std::size_t length) { return texts.take(length); })) return Status::invalid;
  if (message.header.op != (SHMBW_REPLY | SHMBW_OP_LIST)) {
    if (!texts.done()) return Status::invalid;
    return message;
  }

  message.is_list = true;
  const auto page = typed<shmbw_list_reply>(message.fixed.fields);
  const Shape* record = find_record(table);
  if (!record) return Status::invalid;
  RecordReader records(view.rest, page.element_size);
  for (std::size_t i = 0; i < page.count; ++i) {
    auto part = part_of(*record, record->read_record(records));
    if (!part) return part.error();
    if (!take_texts(*part, [&](std::size_t length) { return records.text(length); })) return Status::invalid;
    message.parts.push_back(std::move(*part));
  }
  if (!records.done()) return Status::invalid;
  return message;
}

}  // namespace

Decoded decode(Bytes packet, std::size_t n_fds, Direction direction, std::uint32_t table) {
  auto view = open_packet(packet, n_fds, direction);
  if (!view) return view.error();
  Message message;
  message.header = view->header;
  if ((view->header.flags & ~SHMBW_HEADER_KNOWN) != 0) return Status::unknown_flags;
  const std::uint16_t bits = view->header.op & (SHMBW_REPLY | SHMBW_EVENT);
  const std::uint16_t op = view->header.op & 0x3fff;
  const Kind* known = find(op, bits);
  if (bits == SHMBW_REPLY && view->header.status != 0) {
    message.kind = "error";
    const Kind* request = known ? known : find(op, 0);
    message.name = request ? request->shape.name : "";
    message.fixed = {&kShape<shmbw_refusal>, untyped(to_wire(read_error_reply(*view))), {}, {}};
    message.sentence.assign(reinterpret_cast<const char*>(view->rest.data()), view->rest.size());
    return message;
  }
  if (view->header.status != 0) return Status::invalid;
  if (!known) return Status::unknown_op;
  message.name = known->shape.name;
  message.kind = bits == SHMBW_REPLY ? "reply" : bits == SHMBW_EVENT ? "event" : "request";
  return known->is_batch ? decode_batch(std::move(message), *view, known->shape)
                         : decode_plain(std::move(message), *view, known->shape, table);
}

Bytes encode(const Message& message, std::span<std::byte> buffer) {
  Writer writer(buffer);
  auto texts = [&](const Part& part) {
    for (const std::string& text : part.texts) writer.text(text);
    if (part.detail) writer.text(*part.detail);
  };
  if (message.is_batch) {
    message.parts[0].shape->begin_batch(writer, message.header, message.parts.size());
    for (std::size_t i = 0; i < message.parts.size(); ++i)
      message.parts[i].shape->element(writer, i, message.parts[i].fields);
    for (const Part& part : message.parts) texts(part);
    return writer.finish(message.header.n_fds);
  }
  std::string fields = message.fixed.fields;
  if (message.is_list && !message.parts.empty()) {
    auto page = typed<shmbw_list_reply>(fields);
    page.element_size = static_cast<std::uint16_t>(message.parts[0].shape->size);
    fields = untyped(page);
  }
  message.fixed.shape->begin(writer, message.header, fields);
  texts(message.fixed);
  for (const Part& part : message.parts) {
    part.shape->append(writer, part.fields);
    texts(part);
  }
  writer.text(message.sentence);
  return writer.finish(message.header.n_fds);
}

json part_json(const Part& part) {
  json out{{"fields", part.shape->to_json(part.fields)}};
  json texts = json::object();
  const auto names = part.shape->texts(part.fields);
  for (std::size_t i = 0; i < names.size(); ++i) texts[names[i].first] = text_json(part.texts[i]);
  if (!texts.empty()) out["texts"] = texts;
  if (part.detail) {
    const std::size_t head = std::min(part.detail->size(), sizeof(shmbw_refusal));
    out["detail"] = {{"refusal", fields_json(to_wire(read_element_detail(0, *part.detail)))},
                     {"sentence", text_json(part.detail->substr(head))}};
  }
  return out;
}

json to_json(const Decoded& decoded) {
  if (auto* malformed = std::get_if<Malformed>(&decoded)) {
    constexpr const char* kWords[] = {"empty", "short_header", "size", "fixed", "fd_count", "op_bits"};
    return {{"malformed", kWords[static_cast<int>(*malformed)]}};
  }
  if (auto* status = std::get_if<Status>(&decoded)) return {{"refused", status_text(*status)}};
  const Message& message = std::get<Message>(decoded);
  const bool is_error = std::string_view(message.kind) == "error";
  std::string name = message.name;
  if (name.empty()) name = "op " + std::to_string(message.header.op & 0x3fff);
  json out{{"header", fields_json(message.header)}, {"message", name}, {"kind", message.kind}};
  json fixed = part_json(message.fixed);
  out["fixed"] = fixed["fields"];
  if (fixed.contains("texts")) out["texts"] = fixed["texts"];
  if (message.is_batch || message.is_list) {
    json& parts = out[message.is_batch ? "elements" : "records"] = json::array();
    for (const Part& part : message.parts) parts.push_back(part_json(part));
  }
  if (is_error) out["sentence"] = text_json(message.sentence);
  return out;
}

}  // namespace shmb::wire::test
