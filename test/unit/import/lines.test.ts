import t from 'tap'
import { type LineBatch, readLineBatches } from '../../../shared/import/batches.ts'

const START = { byte: 0, line: 1 }
const MOST = 1000

async function* inPieces(text: string, size: number) {
  const bytes = Buffer.from(text)
  for (let at = 0; at < bytes.length; at += size) {
    // A stream may reuse its memory.
    const piece = Buffer.from(bytes.subarray(at, at + size))
    yield piece
    piece.fill(0)
  }
}

async function cut(text: string, size: number, place = START): Promise<LineBatch[]> {
  return Array.fromAsync(readLineBatches(inPieces(text, size), place, MOST, []))
}

const shown = (batches: readonly LineBatch[]) =>
  batches.flatMap(({ lines }) =>
    lines.map(({ number, start, end, bytes }) => [number, start, end, bytes?.toString()]),
  )

for (const size of [1, 2, 3, 7, 64]) {
  t.test(`splits lines in pieces of ${size} bytes`, async (t) => {
    const lines = await cut('one\r\n\n \t\nzwölf\n\nthree', size)
    t.same(shown(lines), [
      [1, 0, 5, 'one\r'],
      [4, 5, 16, 'zwölf'],
      [6, 16, 22, 'three'],
    ])
  })
}

t.test('starts at any offset', async (t) => {
  const batches = await cut('a\nb\n', 3, { byte: 100, line: 7 })
  t.same(shown(batches), [
    [7, 100, 102, 'a'],
    [8, 102, 104, 'b'],
  ])
})

t.test('returns no bytes for an oversized line, and keeps the next one intact', async (t) => {
  const fits = 'f'.repeat(MOST)
  for (const size of [1, 10, 5000]) {
    const batches = await cut(`${fits}l\n${fits}\n${fits}${fits}`, size)
    t.same(shown(batches), [
      [1, 0, MOST + 2, undefined],
      [2, MOST + 2, 2 * MOST + 3, fits],
      [3, 2 * MOST + 3, 4 * MOST + 3, undefined],
    ])
  }
})

t.test('returns no lines for empty input and blank lines', async (t) => {
  t.same(await cut('', 1), [])
  t.same(await cut('\n \r\n\t', 2), [])
})

t.test('limits a batch to 500 lines and keeps lines longer than a block whole', async (t) => {
  const lines = Array.from({ length: 1200 }, (_, n) => `${n} ${'x'.repeat(5000 + n)}`)
  const source = inPieces(lines.join('\n'), 64 * 1024)

  const batches = await Array.fromAsync(readLineBatches(source, START, 1_000_000, []))

  t.same(
    batches.map((batch) => batch.lines.length),
    [500, 500, 200],
  )
  t.same(
    batches.flatMap((batch) => batch.lines.map(({ bytes }) => bytes?.toString())),
    lines,
  )
})

t.test('limits a batch of large lines to 4 MiB plus one line', async (t) => {
  const line = 'y'.repeat(3 * 1024 * 1024)
  const source = inPieces([line, line, line].join('\n'), 1024 * 1024)
  const batches = await Array.fromAsync(readLineBatches(source, START, 10_000_000, []))
  t.same(
    batches.map((batch) => batch.lines.length),
    [2, 1],
  )
  for (const { lines } of batches) {
    for (const { bytes } of lines) t.ok(bytes?.equals(Buffer.from(line)))
  }
})

t.test('reuses released blocks', async (t) => {
  const spare: Buffer[] = []
  const text = Array.from({ length: 3000 }, (_, n) => `line ${n}`).join('\n')
  const blocks = new Set<ArrayBufferLike>()
  const seen: (string | undefined)[] = []
  for await (const { lines, release } of readLineBatches(
    inPieces(text, 4096),
    START,
    MOST,
    spare,
  )) {
    for (const { bytes } of lines) {
      seen.push(bytes?.toString())
      if (bytes !== undefined) blocks.add(bytes.buffer)
    }
    release()
  }
  t.equal(seen.join('\n'), text)
  t.equal(blocks.size, 1)
  t.equal(spare.length, 1)
})

t.test('returns the complete lines before a source fails', async (t) => {
  async function* broken() {
    yield Buffer.from('a\nb\nha')
    throw new Error('It breaks off')
  }
  const found: LineBatch[] = []
  const reading = async () => {
    for await (const batch of readLineBatches(broken(), START, MOST, [])) found.push(batch)
  }
  await t.rejects(reading(), /breaks off/)
  t.same(shown(found), [
    [1, 0, 2, 'a'],
    [2, 2, 4, 'b'],
  ])
})
