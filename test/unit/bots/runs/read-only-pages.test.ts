/**
 * Isolates of one process share V8's read-only pages, so Node's snapshot and V8's must have the
 * same ones (docs/decisions/0001-executors-are-processes.md).
 */
import { spawn } from 'node:child_process'
import { openSync, readFileSync, readSync } from 'node:fs'
import t, { type Test } from 'tap'

const SCRIPT = '%DebugPrint(undefined); setInterval(() => {}, 1000); console.log("ready")'
const WORD = 8
/** Words at the start of a page that record its allocation. */
const OWN_WORDS = 1

async function readOnlyPages(t: Test, flag: string): Promise<readonly bigint[]> {
  const args = [flag, '--hash-seed=42', '--allow-natives-syntax', '-e', SCRIPT]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => child.kill('SIGKILL'))
  let text = ''
  for await (const chunk of child.stdout) {
    text += chunk
    if (text.includes('ready')) break
  }
  const address = BigInt(/0x[0-9a-f]+/.exec(text)?.[0] ?? 0)
  const maps = readFileSync(`/proc/${child.pid}/maps`, 'latin1').matchAll(/^(\w+)-(\w+) r--p/gm)
  const [start, end] = [...maps]
    .map(([, from, to]) => [BigInt(`0x${from}`), BigInt(`0x${to}`)] as const)
    .find(([from, to]) => from <= address && address < to) ?? [0n, 0n]
  const bytes = Buffer.alloc(Number(end - start))
  readSync(openSync(`/proc/${child.pid}/mem`, 'r'), bytes, 0, bytes.length, start)
  return Array.from({ length: bytes.length / WORD }, (_, at) => {
    const word = bytes.readBigUInt64LE(at * WORD)
    // Makes addresses within the pages relative, since they differ by process.
    return word >= start && word < end ? word - start : word
  })
}

t.test('uses identical read-only pages in isolates and executors', async (t) => {
  if (process.platform !== 'linux') return
  const [ours, plain] = await Promise.all(
    ['--node-snapshot', '--no-node-snapshot'].map((flag) => readOnlyPages(t, flag)),
  )
  t.ok((ours?.length ?? 0) > 1000)
  t.equal(ours?.length, plain?.length)
  t.ok((ours ?? []).filter((word, at) => word !== plain?.[at]).length <= OWN_WORDS)
})
