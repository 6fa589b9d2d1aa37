// SPDX-License-Identifier: Apache-2.0
// Packing of the GPU requests. A packet carries at most 253 descriptors, so a longer list takes several packets. If
// a later packet fails, the grants of the earlier ones are given back.
#include "client/calls/gpu_calls.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/text.hpp"
#include "client/region/region.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"
#include "proto/names.hpp"

namespace shmb::client {
namespace {

constexpr std::size_t kMaxDescriptors = 253;    // in one packet (SCM_MAX_FD)
constexpr std::size_t kMaxPublishChunks = 126;  // of two descriptors each

void give_back_quietly(Session& session, shmbw_region_ref region, bool unname) {
  const GpuRelease release{region, 1, unname};
  (void)insist([&] { return gpu_release(session, {&release, 1}, Deadline::after(0)); });
}

// Each publication by its own descriptors, cut to what one packet takes.
std::size_t chunks_at_first(const GpuPublish& region) { return std::min(region.chunks.size(), kMaxPublishChunks); }
std::size_t descriptors_at_first(const GpuPublish& region) {
  return 2 * chunks_at_first(region) + (region.manifest >= 0 ? 1 : 0);
}

void add_chunks(std::vector<int>& descriptors, std::span<const GpuChunk> chunks) {
  for (const GpuChunk& chunk : chunks) {
    descriptors.push_back(chunk.keeper);
    descriptors.push_back(chunk.share);
  }
}

shmbw_gpu_publish publish_element(const GpuPublish& region) {
  shmbw_gpu_publish element{};
  element.group = region.group;
  element.bytes = region.bytes;
  element.chunk_bytes = region.chunk_bytes;
  element.granularity = region.granularity;
  element.flags = region.flags;
  if (region.keep) {
    element.flags |= SHMBW_GPU_PUBLISH_KEEP_GIVEN;
    element.keep = *region.keep;
  }
  if (region.manifest >= 0) {
    element.flags |= SHMBW_GPU_PUBLISH_MANIFEST;
    element.manifest_bytes = region.manifest_bytes;
  }
  std::ranges::copy(region.uuid, element.uuid);
  element.kind = region.kind;
  element.rights = region.rights;
  element.chunks = static_cast<std::uint32_t>(chunks_at_first(region));
  element.driver = region.driver;
  element.name_len = static_cast<std::uint16_t>(region.name.size());
  element.offset = region.offset;
  element.allocation = region.allocation;
  std::ranges::copy(region.handle, element.handle);
  return element;
}

// The chunks behind the first packet's.
Result<void> send_more_chunks(Session& session, const GpuPublish& region, GpuPublished& made, Deadline deadline) {
  for (std::size_t first = chunks_at_first(region); first < region.chunks.size(); first += kMaxPublishChunks) {
    const std::size_t count = std::min(kMaxPublishChunks, region.chunks.size() - first);
    SHMB_TRY(state,
             gpu_add_chunks(session, made.region, first, std::span(region.chunks).subspan(first, count), deadline));
    made.state = state;
  }
  return {};
}

using Published = std::vector<Result<GpuPublished>>;

// Regions from `first` on that go into one packet.
Result<std::size_t> publish_some(Session& session, std::span<const GpuPublish> regions, std::size_t first,
                                 Published& out, Deadline deadline) {
  std::vector<shmbw_gpu_publish> elements;
  std::vector<std::string_view> texts;
  std::vector<int> descriptors;
  std::size_t size = sizeof(shmbw_header) + sizeof(shmbw_batch), next = first;
  for (; next < regions.size() && elements.size() < SHMBW_MAX_BATCH; ++next) {
    const GpuPublish& region = regions[next];
    size += sizeof(shmbw_gpu_publish) + region.name.size();
    if (next != first &&
        (size > SHMBW_MAX_MESSAGE || descriptors.size() + descriptors_at_first(region) > kMaxDescriptors))
      break;
    elements.push_back(publish_element(region));
    texts.push_back(region.name);
    add_chunks(descriptors, std::span(region.chunks).first(chunks_at_first(region)));
    if (region.manifest >= 0) descriptors.push_back(region.manifest);
  }
  SHMB_TRY(answers, call_batch<SHMBW_OP_GPU_PUBLISH>(session, elements, texts, deadline, {.fds = descriptors}));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    auto answer = answers.next();
    if (!answer) {
      out.push_back(std::unexpected(answer.error()));
      continue;
    }
    const GpuPublish& region = regions[out.size()];
    GpuPublished made{answer->region, answer->bytes, answer->group, answer->rights,
                      static_cast<shmbw_gpu_state>(answer->state)};
    if (auto whole = send_more_chunks(session, region, made, deadline); !whole) {
      give_back_quietly(session, made.region, true);
      out.push_back(std::unexpected(whole.error()));
    } else {
      if (region.group == 0) session.note_group(made.group);
      out.push_back(made);
    }
  }
  return next;
}

Result<shmbw_gpu_open> open_element(const GpuRequest& wish, std::string& text) {
  shmbw_gpu_open element{};
  element.by = wish.by;
  element.rights = wish.rights;
  if (wish.manifest) element.flags |= SHMBW_GPU_OPEN_MANIFEST;
  if (wish.no_fd) element.flags |= SHMBW_GPU_OPEN_NO_FD;
  element.region = wish.region;
  std::ranges::copy(wish.ticket.bytes, element.ticket);
  if (wish.by != SHMBW_ATTACH_BY_NAME) return element;
  SHMB_TRY(address, names::parse_region(wish.address));
  if (address.owner_uid) {
    element.flags |= SHMBW_GPU_OPEN_OWNER_GIVEN;
    element.owner_uid = *address.owner_uid;
  }
  element.group_len = static_cast<std::uint16_t>(address.group.size());
  element.name_len = static_cast<std::uint16_t>(address.name.size());
  text = address.group + address.name;
  return element;
}

// Takes an element's descriptors out of the reply: each number once, or the broker has broken the protocol.
bool take_descriptors(Reply& reply, std::size_t first, std::size_t count, std::vector<Fd>& into) {
  if (first > reply.fds.size() || count > reply.fds.size() - first) return false;
  for (std::size_t i = 0; i < count; ++i) {
    if (!reply.fds[first + i]) return false;
    into.push_back(std::move(reply.fds[first + i]));
  }
  return true;
}

Result<void> fetch_more_shares(Session& session, GpuOpened& opened, Deadline deadline) {
  while (opened.shares.size() < opened.chunks) {
    const std::size_t first = opened.shares.size();
    SHMB_TRY(more, gpu_more(session, opened.region, first, opened.chunks - first, deadline));
    std::ranges::move(more, std::back_inserter(opened.shares));
  }
  return {};
}

Result<GpuOpened> take_opened(Session& session, Reply& reply, const shmbw_gpu_open_reply& answer,
                              const GpuRequest& wish, Deadline deadline) {
  GpuOpened opened;
  opened.region = answer.region;
  opened.bytes = answer.bytes;
  opened.chunk_bytes = answer.chunk_bytes;
  opened.granularity = answer.granularity;
  opened.group = answer.group;
  std::ranges::copy(answer.uuid, opened.uuid.begin());
  opened.kind = static_cast<shmbw_gpu_kind>(answer.kind);
  opened.state = static_cast<shmbw_gpu_state>(answer.state);
  opened.rights = answer.rights;
  opened.flags = answer.flags;
  opened.chunks = answer.chunks;
  opened.driver = answer.driver;
  opened.exporter_pid = answer.exporter_pid;
  opened.manifest_bytes = answer.manifest_bytes;
  opened.offset = answer.offset;
  opened.allocation = answer.allocation;
  std::ranges::copy(answer.handle, opened.handle.begin());
  if (answer.sent > answer.chunks || (answer.sent != 0 && answer.outcome.fd_index == SHMBW_NO_FD) ||
      !take_descriptors(reply, answer.sent == 0 ? 0 : answer.outcome.fd_index, answer.sent, opened.shares))
    return malformed_answer<SHMBW_OP_GPU_OPEN>();
  if (answer.manifest_fd != SHMBW_NO_FD) {
    std::vector<Fd> one;
    if (!take_descriptors(reply, answer.manifest_fd, 1, one)) return malformed_answer<SHMBW_OP_GPU_OPEN>();
    opened.manifest = std::move(one.front());
  }
  if (wish.no_fd || wish.few || opened.kind != SHMBW_GPU_KIND_VMM) return opened;
  SHMB_TRY_VOID(fetch_more_shares(session, opened, deadline));
  return opened;
}

using Opened = std::vector<Result<GpuOpened>>;

// Wishes from `first` on that go into one packet.
Result<std::size_t> open_some(Session& session, std::span<const GpuRequest> wishes, std::size_t first, Opened& out,
                              Deadline deadline) {
  std::vector<shmbw_gpu_open> elements;
  std::vector<std::string> texts;
  std::vector<std::size_t> which;  // place of each element among the wishes
  std::size_t size = sizeof(shmbw_header) + sizeof(shmbw_batch), next = first;
  for (; next < wishes.size() && elements.size() < SHMBW_MAX_BATCH; ++next) {
    std::string text;
    auto element = open_element(wishes[next], text);
    if (!element) {
      out.push_back(std::unexpected(element.error()));
      continue;
    }
    size += sizeof(shmbw_gpu_open) + text.size();
    if (!elements.empty() && size > SHMBW_MAX_MESSAGE) break;
    which.push_back(out.size());
    out.emplace_back();
    elements.push_back(*element);
    texts.push_back(std::move(text));
  }
  if (elements.empty()) return next;
  SHMB_TRY(answers, call_batch<SHMBW_OP_GPU_OPEN>(session, elements, texts, deadline));
  for (const std::size_t i : which) {
    auto answer = answers.next();
    if (!answer) {
      out[i] = std::unexpected(answer.error());
      continue;
    }
    try {
      out[i] = take_opened(session, answers.reply, *answer, wishes[i], deadline);
    } catch (const std::bad_alloc&) {
      out[i] = std::unexpected(Error{Status::no_memory, 0, {}, "out of memory"});  // short enough to need none
    }
    if (!out[i]) give_back_quietly(session, answer->region, false);
  }
  return next;
}

shmbw_gpu_report report_element(const GpuReport& report) {
  shmbw_gpu_report element{};
  element.region = report.region;
  element.what = report.what;
  element.code = report.code;
  std::ranges::copy(report.uuid, element.uuid);
  return element;
}

}  // namespace

Result<GpuHold> gpu_device(Session& session, const GpuUuid& uuid, std::string_view pci, int node, Deadline deadline) {
  if (session.is_local()) return needs_broker("sharing GPU memory");
  shmbw_gpu_device request{};
  std::ranges::copy(uuid, request.uuid);
  request.pci_len = static_cast<std::uint16_t>(pci.size());
  GpuHold found;
  for (bool lost = true; std::exchange(lost, false);) {
    Session::OwnWatch watch(session);
    SHMB_TRY(answer,
             call<SHMBW_OP_GPU_DEVICE>(session, request, {pci}, deadline, {.subscription = &watch.subscription()}));
    found = {static_cast<shmbw_gpu_hold>(answer.fixed.hold), answer.fixed.minor, {}};
    if (found.hold != SHMBW_GPU_HOLD_OPENING) return found;
    SHMB_TRY(told, watch.await(deadline));
    lost = told.kind == Event::Kind::gap;  // the event may be among what was lost: ask again
    found = {static_cast<shmbw_gpu_hold>(told.how), told.pid, told.text};
  }
  if (found.hold != SHMBW_GPU_HOLD_FAILED) return found;
  if (node < 0)
    return error(Status::device_not_pinned,
                 "the broker cannot keep the GPU initialised (" + found.text +
                     ") and no descriptor of its device node was given; let the broker's user open /dev/nvidia*, or "
                     "run nvidia-persistenced and set gpu_hold = \"trust\" in the broker's configuration");
  request.flags = SHMBW_GPU_DEVICE_NODE_GIVEN;
  SHMB_TRY(answer, call<SHMBW_OP_GPU_DEVICE>(session, request, {pci}, deadline, {.fds = std::span(&node, 1)}));
  found.hold = static_cast<shmbw_gpu_hold>(answer.fixed.hold);
  found.minor = answer.fixed.minor;
  return found;
}

Result<Published> gpu_publish(Session& session, std::span<const GpuPublish> regions, Deadline deadline) {
  if (session.is_local()) return needs_broker("sharing GPU memory");
  Published out;
  out.reserve(regions.size());
  for (std::size_t next = 0; next < regions.size();) {
    auto went = publish_some(session, regions, next, out, deadline);
    if (!went) {
      for (const auto& made : out)
        if (made) give_back_quietly(session, made->region, true);
      return std::unexpected(went.error());
    }
    next = *went;
  }
  return out;
}

Result<Opened> gpu_open(Session& session, std::span<const GpuRequest> wishes, Deadline deadline) {
  if (session.is_local()) return needs_broker("sharing GPU memory");
  Opened out;
  out.reserve(wishes.size());
  for (std::size_t next = 0; next < wishes.size();) {
    auto went = open_some(session, wishes, next, out, deadline);
    if (!went) {
      for (const auto& opened : out)
        if (opened && opened->region.id != 0) give_back_quietly(session, opened->region, false);
      return std::unexpected(went.error());
    }
    next = *went;
  }
  return out;
}

Result<shmbw_gpu_state> gpu_add_chunks(Session& session, shmbw_region_ref region, std::size_t first,
                                       std::span<const GpuChunk> chunks, Deadline deadline) {
  std::vector<int> descriptors;
  add_chunks(descriptors, chunks);
  const shmbw_gpu_chunks request{region, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(chunks.size())};
  SHMB_TRY(answer, call<SHMBW_OP_GPU_CHUNKS>(session, request, {}, deadline, {.fds = descriptors}));
  return static_cast<shmbw_gpu_state>(answer.fixed.state);
}

Result<std::vector<Fd>> gpu_more(Session& session, shmbw_region_ref region, std::size_t first, std::size_t most,
                                 Deadline deadline) {
  const auto from = static_cast<std::uint32_t>(first);
  const auto count = static_cast<std::uint32_t>(std::min(most, kMaxDescriptors));
  SHMB_TRY(answer, call<SHMBW_OP_GPU_MORE>(session, shmbw_gpu_more{region, from, count}, {}, deadline));
  std::vector<Fd> shares;
  if (answer.fixed.first != from || answer.fixed.count == 0 || answer.fixed.count > count ||
      !take_descriptors(answer.reply, 0, answer.fixed.count, shares))
    return malformed_answer<SHMBW_OP_GPU_MORE>();
  return shares;
}

Result<shmbw_gpu_state> gpu_report(Session& session, const GpuReport& report, Deadline deadline) {
  SHMB_TRY(answer, call<SHMBW_OP_GPU_REPORT>(session, report_element(report), {}, deadline));
  return static_cast<shmbw_gpu_state>(answer.fixed.state);
}

Result<void> gpu_report_later(Session& session, std::span<const GpuReport> reports, Deadline deadline) {
  std::vector<shmbw_gpu_report> elements;
  for (const GpuReport& report : reports) elements.push_back(report_element(report));
  return post<SHMBW_OP_GPU_REPORT>(session, elements, deadline);
}

Result<void> gpu_release(Session& session, std::span<const GpuRelease> releases, Deadline deadline) {
  std::vector<shmbw_release> elements;
  for (const GpuRelease& release : releases)
    elements.push_back({release.region, release.count, release.unname ? std::uint32_t{SHMBW_RELEASE_UNNAME} : 0});
  return post<SHMBW_OP_RELEASE>(session, elements, deadline);
}

Result<std::uint32_t> gpu_retire(Session& session, shmbw_region_ref region, Deadline deadline) {
  SHMB_TRY(answer, call<SHMBW_OP_GPU_RETIRE>(session, shmbw_gpu_retire{region}, {}, deadline));
  return answer.fixed.users;
}

Result<GpuTimelineMade> gpu_timeline(Session& session, const GpuTimelineRequest& wish, Deadline deadline) {
  if (session.is_local()) return needs_broker("a timeline");
  shmbw_gpu_timeline request{};
  request.group = wish.group;
  request.words = wish.words;
  if (wish.keep) {
    request.flags |= SHMBW_GPU_TIMELINE_KEEP_GIVEN;
    request.keep = *wish.keep;
  }
  if (wish.replace) request.flags |= SHMBW_GPU_TIMELINE_REPLACE;
  request.name_len = static_cast<std::uint16_t>(wish.name.size());
  SHMB_TRY(answer, call<SHMBW_OP_GPU_TIMELINE>(session, request, {wish.name}, deadline));
  auto& [made, reply] = answer;
  if (reply.fds.size() != 1) return malformed_answer<SHMBW_OP_GPU_TIMELINE>();
  if (wish.group == 0) session.note_group(made.group);
  return GpuTimelineMade{made.region, made.bytes, made.group, std::move(reply.fds.front())};
}

void post_timeline_end(Session& session, shmbw_region_ref region) noexcept {
  GpuReport over;
  over.region = region;
  over.what = SHMBW_GPU_FINDING_WRITTEN;
  (void)insist([&] { return post<SHMBW_OP_GPU_REPORT>(session, report_element(over), Deadline::after(0)); });
  (void)insist([&] { return post_release(session, region, 0); });
}

Result<std::uint32_t> gpu_pinned(Session& session, shmbw_region_ref region, bool unpin, Deadline deadline) {
  const shmbw_gpu_pinned element{region, unpin ? std::uint32_t{SHMBW_GPU_PINNED_UNPIN} : 0, 0};
  SHMB_TRY(answer, call<SHMBW_OP_GPU_PINNED>(session, element, {}, deadline));
  return answer.fixed.pins;
}

void undo_gpu_publish(LateReply& late) { late.release_granted<shmbw_gpu_publish_reply>(SHMBW_RELEASE_UNDO); }
void undo_gpu_open(LateReply& late) { late.release_granted<shmbw_gpu_open_reply>(0); }
void undo_gpu_timeline(LateReply& late) {
  late.release(late.fixed<shmbw_gpu_timeline_reply>().region, SHMBW_RELEASE_UNNAME);
}

}  // namespace shmb::client
