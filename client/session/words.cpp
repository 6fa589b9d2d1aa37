// SPDX-License-Identifier: Apache-2.0
// See words.hpp.
#include "client/session/words.hpp"

#include <algorithm>
#include <iterator>

namespace shmb::client {

namespace {

constexpr Word kWords[] = {
    {"SHMB_FOREVER", "Timeout::forever()", "no limit", "None"},
    {"SHMB_GPU_ALLOCATE_RDMA", "AllocateOptions::rdma", "", ""},
    {"SHMB_GPU_ANY_DEVICE", "no device (any)", "", ""},
    {"SHMB_GPU_PUBLISH_MANY_WRITERS", "PublishOptions::many_writers", "", ""},
    {"SHMB_GPU_PUBLISH_WRITING", "PublishOptions::writing", "", ""},
    {"SHMB_KEEP_UNTIL_RELEASED", "Keep::until_released()", "--keep until-released", "keep=\"released\""},
    {"SHMB_NO_WAIT", "Timeout::no_wait()", "0", "0"},
    {"SHMB_QUEUE_AS_IS", "QueueKind::as_is", "", "\"as_is\""},
    {"SHMB_QUEUE_AT_LEAST_ONCE", "QueueOptions::at_least_once", "", "at_least_once"},
    {"SHMB_QUEUE_BROADCAST", "QueueKind::broadcast", "", "\"broadcast\""},
    {"SHMB_QUEUE_CREATE_ONLY", "QueueOptions::create_only", "", "create_only"},
    {"SHMB_QUEUE_DROP_OLDEST", "QueueOptions::drop_oldest", "", "drop_oldest"},
    {"SHMB_QUEUE_EXPIRING", "QueueOptions::expiring", "", "expiring"},
    {"SHMB_QUEUE_MPMC", "QueueKind::mpmc", "", "\"mpmc\""},
    {"SHMB_QUEUE_OPEN_ONLY", "QueueOptions::open_only", "", "open_only"},
    {"SHMB_QUEUE_SPSC", "QueueKind::spsc", "", "\"spsc\""},
    {"shmb_create", "Session::create", "shmbroker put", "Session.create"},
    {"shmb_dispatch", "gpu::dispatch", "", ""},
    {"shmb_gpu_adopt", "gpu::adopt", "", ""},
    {"shmb_gpu_allocate", "gpu::allocate", "", ""},
    {"shmb_gpu_allocate_options.retry_ns", "AllocateOptions::retry", "", ""},
    {"shmb_gpu_lend", "gpu::lend", "", ""},
    {"shmb_message_done", "Message::done", "", "Message.done"},
    {"shmb_message_give_back", "Message::give_back", "", "Message.give_back"},
    {"shmb_pool_create", "Pool::create", "", "Session.create_pool"},
    {"shmb_pool_open", "Pool::open", "", "Session.open_pool"},
    {"shmb_pool_options.class_count", "PoolOptions::classes", "", "classes"},
    {"shmb_queue_options.spin_ns", "QueueOptions::spin", "", "spin"},
    {"shmb_queue_receive", "Queue::receive", "", "Queue.receive"},
    {"shmb_rank_enter", "spawn_child", "", "shmbroker.spawn"},
    {"shmb_reference_created", "Remote::created", "", ""},
    {"shmb_reference_fetch", "to_here()", "", ""},
    {"shmb_reference_local", "local_value()", "", ""},
    {"shmb_region_map", "map", "", "attach"},
    {"shmb_remote_create", "remote()", "", ""},
    {"shmb_size_class.slots_limit", "SizeClass::slots_limit", "", "slots_limit"},
    {"shmb_ticket_revoke", "Session::revoke", "", "Session.revoke"},
    {"shmb_torch_alloc", "shmb_torch_alloc", "", ""},
};
static_assert(std::ranges::is_sorted(kWords, {}, &Word::c));

constexpr bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The length of a C name of the library at the start of `text`, with a field after it if there is one.
std::size_t name_length(std::string_view text) {
  if (!text.starts_with("shmb_") && !text.starts_with("SHMB_")) return 0;
  std::size_t length = 0;
  while (length < text.size() && in_name(text[length])) ++length;
  std::size_t field = length + 1;
  if (length < text.size() && text[length] == '.')
    while (field < text.size() && in_name(text[field])) ++field;
  return field > length + 1 && find_word(text.substr(0, field)) != nullptr ? field : length;
}

}  // namespace

const Word* find_word(std::string_view name) noexcept {
  const auto* found = std::ranges::lower_bound(kWords, name, {}, &Word::c);
  return found != std::end(kWords) && found->c == name ? found : nullptr;
}

std::string in_words_of(Face face, std::string_view sentence) {
  std::string out;
  for (std::size_t at = 0; at < sentence.size();) {
    const bool begins = at == 0 || !in_name(sentence[at - 1]);
    const std::size_t length = begins ? name_length(sentence.substr(at)) : 0;
    const Word* const word = length == 0 ? nullptr : find_word(sentence.substr(at, length));
    if (word == nullptr || face == Face::c) {
      out += sentence[at++];
      continue;
    }
    const std::string_view own = face == Face::shell ? word->shell : face == Face::python ? word->python : word->cxx;
    const std::string_view said = own.empty() ? word->cxx : own;
    out += said;
    at += length;
  }
  return out;
}

}  // namespace shmb::client
