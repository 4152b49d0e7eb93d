/* Behind a generated unit: runs it once over memory read from argv[1], and writes what it left to argv[2].  Every buffer is an allocation
   of its own, so that a sanitizer sees where each ends.  The unit's test defines LENT, INPUTS, FIXED, ARENA, STATE, SIZES, SEGMENTS, STEPS. */
typedef struct file file;
file *fopen(const char *, const char *);
unsigned long fread(void *, unsigned long, unsigned long, file *), fwrite(const void *, unsigned long, unsigned long, file *);
int fclose(file *);
void *malloc(unsigned long), *aligned_alloc(unsigned long, unsigned long);

static const i64 lent_nbytes[] = LENT, fixed_nbytes[] = FIXED, sizes[] = SIZES, segments[][2] = SEGMENTS;
enum { LENT_COUNT = sizeof lent_nbytes/sizeof(i64) - 1, FIXED_COUNT = sizeof fixed_nbytes/sizeof(i64) - 1, SIZES_COUNT = sizeof sizes/sizeof(i64) - 1,
       SEGMENTS_COUNT = sizeof segments/sizeof segments[0] - 1 };  /* each ends with one that only keeps the array from being empty */

static void *filled(void *memory, i64 nbytes, int byte) { return __builtin_memset(memory, byte, (u64)nbytes); }
static void *lines(i64 nbytes, int byte) { nbytes = (nbytes + 64)/64*64; return filled(aligned_alloc(64, (u64)nbytes), nbytes, byte); }

int main(int count, char **names) {
  if (count < 3) return 2;
  file *given = fopen(names[1], "rb");
  void *lent[LENT_COUNT + 1], *fixed[FIXED_COUNT + 1];
  struct { i64 size[SIZES_COUNT]; rlx_tail tail; } words = {0};
  for (i64 k = 0; k < SIZES_COUNT; k++) words.size[k] = sizes[k];
  for (i64 k = 0; k < LENT_COUNT; k++) {
    lent[k] = filled(malloc((u64)lent_nbytes[k]), lent_nbytes[k], 0xff);
    if (k < INPUTS && fread(lent[k], 1, (u64)lent_nbytes[k], given) != (u64)lent_nbytes[k]) return 4;
  }
  for (i64 k = 0; k < FIXED_COUNT; k++) {
    fixed[k] = lines(fixed_nbytes[k], 0xff);
    if (fread(fixed[k], 1, (u64)fixed_nbytes[k], given) != (u64)fixed_nbytes[k]) return 4;
  }
  fclose(given);
  char *arena = lines(ARENA, 0xff), *state = lines(STATE, 0);
  words.tail.log = lines(1 << 20, 0);
  rlx_pool *pool = lines(sizeof(rlx_pool) + STEPS*sizeof(rlx_counter), 0);
  for (i64 k = 0; k < SEGMENTS_COUNT; k++) {
    pool->lo = segments[k][0], pool->hi = segments[k][1];
    pool->arena = arena, pool->state = state, pool->lent = lent, pool->fixed = (void *const *)fixed, pool->size = (const i64 *)&words;
    rlx_run(pool);
  }
  file *left = fopen(names[2], "wb");
  for (i64 k = 0; k < LENT_COUNT; k++) fwrite(lent[k], 1, (u64)lent_nbytes[k], left);
  fwrite(arena, 1, ARENA, left);
  fclose(left);
  return words.tail.node ? 3 : 0;
}
