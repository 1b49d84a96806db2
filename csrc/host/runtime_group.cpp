#include "runtime_group.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(MSL_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace msl_ {

#if defined(MSL_CURRENT_BY_CALL)
static __thread Thread* running;
#else
__thread Thread* running;
#endif

namespace {

constexpr unsigned char kPoison = 0xCB; // as float -2.7e7, as half -15.6: uninitialised threadgroup memory shows
constexpr size_t kRedzone = 64;
// Room for a full set of threadgroup arguments, and for locals beyond Metal's limit: the launch fails, but it goes on
// until its threads end.
constexpr size_t kDynamicBytes = MSL_MAX_THREADGROUP_BYTES + MSL_MAX_BUFFERS * 2 * kRedzone;
constexpr size_t kLocalBytes = 256 << 10;

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

char* aligned_memory(size_t bytes) {
  return static_cast<char*>(::operator new(round_up(bytes, 64), std::align_val_t(64)));
}

void hide([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(MSL_ASAN)
  __asan_poison_memory_region(memory, bytes);
#endif
}

void show([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(MSL_ASAN)
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

void fill_poison(void* memory, size_t bytes) {
#if defined(MSL_TSAN)
  // ThreadSanitizer intercepts memset even here and would take it for an access of the GPU thread.
  for (size_t i = 0; i < bytes; i++) static_cast<volatile unsigned char*>(memory)[i] = kPoison;
#else
  std::memset(memory, kPoison, bytes);
#endif
}

void happens_before([[maybe_unused]] void* token) {
#if defined(MSL_TSAN)
  msl_rt_release(token);
#endif
}

void happens_after([[maybe_unused]] void* token) {
#if defined(MSL_TSAN)
  msl_rt_acquire(token);
#endif
}

uint32_t all_lanes(const Simdgroup& simdgroup) { return simdgroup.size == kLanes ? ~0u : (1u << simdgroup.size) - 1; }

Runner& runner_of(const Simdgroup* simdgroup) { return *static_cast<Runner*>(simdgroup->group); }

} // namespace

Runner::Runner() : Group{} {
  threads_ = static_cast<Thread*>(::operator new(sizeof(Thread) * MSL_MAX_THREADS, std::align_val_t(alignof(Thread))));
  dynamic_memory_ = aligned_memory(kDynamicBytes);
  local_memory_ = aligned_memory(kLocalBytes);
  hide(dynamic_memory_, kDynamicBytes);
  hide(local_memory_, kLocalBytes);
}

Runner::~Runner() {
  for (uint32_t i = 0; i < prepared_ * kLanes; i++) destroy(&threads_[i].context);
  destroy(&main_.context);
  show(dynamic_memory_, kDynamicBytes);
  show(local_memory_, kLocalBytes);
  ::operator delete(dynamic_memory_, std::align_val_t(64));
  ::operator delete(local_memory_, std::align_val_t(64));
  ::operator delete(threads_, std::align_val_t(alignof(Thread)));
}

void Runner::bind(LaunchState& state) {
  const msl_launch& request = *state.launch;
  launch = &state;
  kernel = request.kernel->call;
  buffers = request.buffers;
  nbuffers = request.nbuffers;
  tensor_layout = state.tensor_layout;
  nominal_nthreads = 1;
  for (int axis = 0; axis < 3; axis++) {
    grid[axis] = state.grid[axis];
    groups[axis] = state.groups[axis];
    nominal_size[axis] = request.group[axis];
    nominal_nthreads *= request.group[axis];
  }
  order_mode_ = state.lane_order;
  for (uint32_t i = 0; i < prepared_; i++) simdgroups_[i]->chain_is_full = false; // its order may have changed
  size[0] = 0;                                                                    // laid out by the first threadgroup
  hide(dynamic_memory_, kDynamicBytes);
  size_t offset = kRedzone;
  for (uint32_t i = 0; i < request.nthreadgroup; i++) {
    const size_t bytes = request.threadgroup_bytes[i];
    threadgroup_memory[i] = dynamic_memory_ + offset;
    show(threadgroup_memory[i], bytes);
    offset += round_up(bytes, 64) + kRedzone;
  }
}

void Runner::ensure_simdgroups(uint32_t count) {
  for (; prepared_ < count; prepared_++) {
    const uint32_t base = prepared_ * kLanes;
    stacks_[prepared_] = std::make_unique<StackBlock>();
    simdgroups_[prepared_] = std::make_unique<Simdgroup>();
    Simdgroup& simdgroup = *simdgroups_[prepared_];
    simdgroup.group = this;
    simdgroup.threads = threads_ + base;
    simdgroup.in = &simdgroup.slots[0];
    simdgroup.out = &simdgroup.slots[1];
    for (uint32_t lane = 0; lane < kLanes; lane++) {
      Thread* thread = new (threads_ + base + lane) Thread{};
      thread->simdgroup = &simdgroup;
      thread->lane = static_cast<uint16_t>(lane);
      thread->index = static_cast<uint16_t>(base + lane);
      prepare(&thread->context, stacks_[prepared_]->bottom(lane), stacks_[prepared_]->top(lane, base + lane));
#if defined(MSL_ASAN) || defined(MSL_TSAN)
      thread->stack_bottom = stacks_[prepared_]->bottom(lane);
#endif
    }
  }
}

// Lays the threads out for a threadgroup of this size: once per launch, and at the grid's ragged edges.
void Runner::set_size(const uint32_t wanted[3]) {
  if (std::equal(wanted, wanted + 3, size)) return;
  std::copy(wanted, wanted + 3, size);
  nthreads = size[0] * size[1] * size[2];
  nsimdgroups_ = (nthreads + kLanes - 1) / kLanes;
  ensure_simdgroups(nsimdgroups_);
  uint32_t index = 0;
  for (uint32_t z = 0; z < size[2]; z++)
    for (uint32_t y = 0; y < size[1]; y++)
      for (uint32_t x = 0; x < size[0]; x++, index++) {
        uint16_t* position_in_group = threads_[index].position;
        position_in_group[0] = static_cast<uint16_t>(x);
        position_in_group[1] = static_cast<uint16_t>(y);
        position_in_group[2] = static_cast<uint16_t>(z);
      }
  for (uint32_t i = 0; i < nsimdgroups_; i++) {
    const uint32_t lanes = std::min(kLanes, nthreads - i * kLanes);
    if (simdgroups_[i]->size != lanes) simdgroups_[i]->chain_is_full = false;
    simdgroups_[i]->size = lanes;
  }
}

void Runner::run(const uint32_t at[3]) {
  uint32_t wanted[3];
  for (int axis = 0; axis < 3; axis++) {
    position[axis] = at[axis];
    wanted[axis] = std::min(nominal_size[axis], grid[axis] - at[axis] * nominal_size[axis]);
  }
  set_size(wanted);
  const uint64_t linear = at[0] + uint64_t(groups[0]) * (at[1] + uint64_t(groups[1]) * at[2]);
  random_state_ = (launch->seed + linear + 1) * 0x9E3779B97F4A7C15u | 1; // not of the OS thread: runs repeat exactly
  clear_threadgroup_memory();

  queued_ = nsimdgroups_;
  for (uint32_t i = 0; i < nsimdgroups_; i++) {
    queue_[i] = simdgroups_[i].get();
    link(*queue_[i], all_lanes(*queue_[i]));
  }
  arrange_queue();
  if (kSanitized) {
    sanitizer_begin(&main_);
    happens_before(&start_token_);
    for (uint32_t i = 0; i < nthreads; i++) sanitizer_begin(&threads_[i]);
  }
  cursor_ = 0;
  switch_thread(&main_, queue_[0]->first);
  if (kSanitized) happens_after(&end_token_);
  free_locals();
}

void Runner::end() {
  for (uint32_t i = 0; kSanitized && i < prepared_ * kLanes; i++) sanitizer_end(&threads_[i]);
}

void Runner::arrange_queue() {
  if (order_mode_ == MSL_ORDER_REVERSE) std::reverse(queue_, queue_ + queued_);
  if (order_mode_ == MSL_ORDER_RANDOM)
    for (uint32_t i = queued_; i > 1; i--) std::swap(queue_[i - 1], queue_[random(i)]);
}

uint32_t Runner::random(uint32_t below) { // xorshift64*
  random_state_ ^= random_state_ >> 12;
  random_state_ ^= random_state_ << 25;
  random_state_ ^= random_state_ >> 27;
  return static_cast<uint32_t>((random_state_ * 0x2545F4914F6CDD1Du >> 33) % below);
}

// Chains these lanes in the order in which they shall run.
void Runner::link(Simdgroup& simdgroup, uint32_t lanes) {
  const bool full = lanes == all_lanes(simdgroup) && order_mode_ != MSL_ORDER_RANDOM;
  if (full && simdgroup.chain_is_full) return;
  simdgroup.chain_is_full = full;
  Thread* chain[kLanes];
  uint32_t count = 0;
  for (; lanes != 0; lanes &= lanes - 1) chain[count++] = simdgroup.threads + __builtin_ctz(lanes);
  if (order_mode_ == MSL_ORDER_REVERSE) std::reverse(chain, chain + count);
  if (order_mode_ == MSL_ORDER_RANDOM)
    for (uint32_t i = count; i > 1; i--) std::swap(chain[i - 1], chain[random(i)]);
  for (uint32_t i = 0; i < count; i++) chain[i]->next = i + 1 < count ? chain[i + 1] : nullptr;
  simdgroup.first = chain[0];
}

Thread* Runner::next(Simdgroup* simdgroup) {
  if (Thread* thread = release_waiting_lanes(*simdgroup)) return thread;
  if (++cursor_ == queued_) {
    if (!release_barrier()) return &main_;
    cursor_ = 0;
  }
  return queue_[cursor_]->first;
}

// All lanes of the simdgroup wait or have finished: lets those go on that wait in the same simd function.
// Null if the others have to run first (all wait at the threadgroup barrier) or nobody is left.
Thread* Runner::release_waiting_lanes(Simdgroup& simdgroup) {
  const uint32_t* site = simdgroup.site;
  uint32_t difference = 0;
  for (uint32_t lane = 0; lane < simdgroup.size; lane++) difference |= site[lane] ^ site[0];
  simdgroup.waiting = 0;
  if (difference == 0) {
    if (site[0] == kSiteFinished) return nullptr;
    if (site_kind(site[0]) != kSiteBarrier) return release_lanes(simdgroup, all_lanes(simdgroup));
    simdgroup.waiting = all_lanes(simdgroup);
    return nullptr;
  }
  // Divergent code. The earliest line goes first: it is most likely inside a branch or loop, after which its lanes join
  // those that skipped it.
  uint32_t earliest = ~0u;
  for (uint32_t lane = 0; lane < simdgroup.size; lane++)
    if (site_kind(site[lane]) > kSiteBarrier) earliest = std::min(earliest, site[lane]);
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < simdgroup.size; lane++) {
    if (site[lane] == earliest) lanes |= 1u << lane;
    if (site_kind(site[lane]) == kSiteBarrier) simdgroup.waiting |= 1u << lane;
  }
  return lanes != 0 ? release_lanes(simdgroup, lanes) : nullptr;
}

Thread* Runner::release_lanes(Simdgroup& simdgroup, uint32_t lanes) {
  Slots* completed = simdgroup.in;
  Slots* other = completed == &simdgroup.slots[0] ? &simdgroup.slots[1] : &simdgroup.slots[0];
  if (lanes != all_lanes(simdgroup)) *other = *completed; // what the lanes left behind have published stays theirs
  simdgroup.in = other;
  simdgroup.out = completed;
  simdgroup.active = lanes;
  simdgroup.reduced = false;
  link(simdgroup, lanes);
  return simdgroup.first;
}

// Everybody waits at a threadgroup barrier or has finished. False if all have finished.
bool Runner::release_barrier() {
  uint32_t arrived = 0;
  queued_ = 0;
  for (uint32_t i = 0; i < nsimdgroups_; i++) {
    Simdgroup& simdgroup = *simdgroups_[i];
    if (simdgroup.waiting == 0) continue;
    arrived += static_cast<uint32_t>(__builtin_popcount(simdgroup.waiting));
    queue_[queued_++] = &simdgroup;
  }
  if (queued_ == 0) return false;
  check_barrier(arrived);
  for (uint32_t i = 0; i < queued_; i++) link(*queue_[i], queue_[i]->waiting);
  arrange_queue();
  return true;
}

void Runner::check_barrier(uint32_t arrived) {
  const auto lane = static_cast<uint32_t>(__builtin_ctz(queue_[0]->waiting));
  const uint32_t site = queue_[0]->site[lane];
  const char* file = queue_[0]->file[lane];
  for (uint32_t i = 0; i < queued_; i++) {
    const Simdgroup& simdgroup = *queue_[i];
    for (uint32_t lanes = simdgroup.waiting; lanes != 0; lanes &= lanes - 1) {
      const int other = __builtin_ctz(lanes);
      if (simdgroup.site[other] == site) continue;
      report_divergence(format("threads wait at different barriers, %s:%u and %s:%u", file, site_line(site),
                               simdgroup.file[other], site_line(simdgroup.site[other])));
      return;
    }
  }
  if (arrived != nthreads)
    report_divergence(format("barrier at %s:%u is reached by %u of %u threads, the others have finished", file,
                             site_line(site), arrived, nthreads));
}

void Runner::report_divergence(const std::string& what) {
  const std::string message = format("kernel %s: barrier divergence: %s (threadgroup %u, %u, %u)",
                                     launch->launch->kernel->name, what.c_str(), position[0], position[1], position[2]);
  if (launch->strict)
    launch->fail(message);
  else
    std::fprintf(stderr, "torch_foundry: %s\n", message.c_str());
}

void Runner::clear_threadgroup_memory() {
  dynamic_bytes_ = 0;
  for (uint32_t i = 0; i < launch->launch->nthreadgroup; i++) {
    fill_poison(threadgroup_memory[i], launch->launch->threadgroup_bytes[i]);
    dynamic_bytes_ += launch->launch->threadgroup_bytes[i];
  }
}

// Called by the first thread that reaches the declaration. The key remembers the slot, so that the others find it.
void* Runner::allocate_local(unsigned char* key, size_t bytes) {
  for (uint32_t i = 0; i < nlocals; i++)
    if (locals[i].key == key) return locals[i].address;
  if (dynamic_bytes_ + local_bytes_ + bytes > MSL_MAX_THREADGROUP_BYTES)
    launch->fail(format("kernel %s: %zu bytes of threadgroup memory, Metal allows %d", launch->launch->kernel->name,
                        dynamic_bytes_ + local_bytes_ + bytes, MSL_MAX_THREADGROUP_BYTES));
  constexpr uint32_t capacity = sizeof locals / sizeof locals[0];
  const size_t end = round_up(local_offset_ + bytes, 64) + kRedzone;
  if (nlocals == capacity || end > kLocalBytes) { // far over the limit, and reported: only keep the threads going
    launch->fail(format("kernel %s: too many threadgroup variables", launch->launch->kernel->name));
    return std::malloc(bytes);
  }
  void* address = local_memory_ + local_offset_;
  local_offset_ = end;
  local_bytes_ += bytes;
  show(address, bytes);
  fill_poison(address, bytes);
  locals[nlocals] = {key, address};
  __atomic_store_n(key, static_cast<unsigned char>(nlocals), __ATOMIC_RELAXED);
  nlocals++;
  return address;
}

void Runner::free_locals() {
  if (nlocals == 0) return;
  hide(local_memory_, local_offset_);
  for (uint32_t i = 0; i < nlocals; i++) locals[i].key = nullptr;
  nlocals = 0;
  local_offset_ = local_bytes_ = 0;
}

MSL_INLINE void Runner::fiber_main() {
  for (;;) {
    Thread* thread = current();
    sanitizer_entered(thread);
    happens_after(&start_token_);
    kernel(this, thread); // may run further lanes on this stack
    happens_before(&end_token_);
    thread = current();
    if (!is_fresh(thread->context)) {
      const StackBlock& stacks = *stacks_[thread->index / kLanes];
      prepare(&thread->context, stacks.bottom(thread->lane), stacks.top(thread->lane, thread->index));
    }
    Thread* successor = thread->next != nullptr ? thread->next : next(thread->simdgroup);
    if (kSanitized || !is_fresh(successor->context)) leave(successor);
    current() = successor; // it has not started: it may as well start here
  }
}

} // namespace msl_

using namespace msl_;

#if defined(MSL_CURRENT_BY_CALL)
Thread** msl_rt_current() { return &running; }
#endif

Thread* msl_rt_next(Simdgroup* simdgroup) { return runner_of(simdgroup).next(simdgroup); }

void* msl_rt_threadgroup_local(Group* group, unsigned char* key, uint64_t bytes) {
  return static_cast<Runner*>(group)->allocate_local(key, bytes);
}

void msl_rt_fiber_entry() { runner_of(current()->simdgroup).fiber_main(); }
