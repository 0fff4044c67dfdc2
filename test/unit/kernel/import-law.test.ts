/**
 * Import rules of the product. A file imports only its own layer and those above it in LAYERS,
 * types included, and no two folders import each other.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join, posix } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../../..')

/** The layers, from the top; only `api` knows all features. A subfolder has the layer of its longest listed prefix. */
const LAYERS = [
  'core',
  'core/config',
  'fhir',
  'fhirpath',
  'search/language',
  'validation',
  'access',
  'outbound/storage',
  'redis',
  'postgres',
  'queue',
  'outbound',
  'store/index',
  'store/rows',
  'search/predicates',
  'access/decisions',
  'search/planner',
  'store/read',
  'search',
  'store/reindex',
  'store/write',
  'store',
  'identity',
  'request',
  'request/binary',
  'terminology',
  'bots',
  'jobs',
  'projects',
  'subscriptions',
  'rest',
  'graphql',
  'export',
  'import',
  'operations',
  'api',
].map((name) => `shared/${name}/`)

/** Packages, with the files that may import them. */
const PACKAGES: ReadonlyMap<string, RegExp> = new Map([
  ['koa', /^server\//],
  ['@koa/router', /^server\//],
  ['@koa/cors', /^server\//],
  ['isolated-vm', /^worker\/executor\/sandbox\.ts$/],
  ['bullmq', /^shared\/queue\//],
])

/** Files outside the store with SQL for the tables of their feature. */
const SQL_FILES = [
  /^shared\/(store|search|access\/decisions|identity|postgres)\//,
  /^shared\/api\/open-services\.ts$/,
  /^shared\/outbound\/mails\.ts$/,
  /^shared\/request\/binary\/attachments\.ts$/,
  /^shared\/terminology\/store-[\w-]+\.ts$/,
  /^shared\/bots\/(async-jobs|dead-runs|run-records|schedules|write-rules)\.ts$/,
  /^shared\/jobs\/upkeep\/\w+\.ts$/,
  /^shared\/subscriptions\/(dead-letters|deliveries|events|new-deliveries|outbox|state|write-rule|store-[\w-]+)\.ts$/,
  /^shared\/(export\/rows\/[\w-]+|import\/(jobs|parts))\.ts$/,
]
const SQL = /[`'"](with \w+ as|select|insert into|update \w+ set|delete from) /

interface Import {
  readonly from: string
  readonly to: string
}

const files = ['shared', 'server', 'worker'].flatMap((folder) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .map((path) => posix.join(folder, path))
    .filter((path) => /\.(ts|tsx|cjs)$/.test(path)),
)
const texts = new Map(files.map((path) => [path, readFileSync(join(ROOT, path), 'utf8')]))
// A dynamic import, such as a console page, is not part of a cycle at start.
const NAMED = /(?:^|\s)(?:from|import|import\(|require\()\s*['"]([^'"]+)['"]/g
const named = files.flatMap((from) =>
  [...(texts.get(from) ?? '').matchAll(NAMED)].map(([, to = '']) => ({ from, to })),
)
const imports: readonly Import[] = named
  .filter(({ to }) => to.startsWith('.'))
  .map(({ from, to }) => ({ from, to: posix.join(posix.dirname(from), to) }))

const line = ({ from, to }: Import) => `${from} imports ${to}`
const findLayer = (path: string) =>
  LAYERS.reduce(
    (found, name, at) =>
      path.startsWith(name) && name.length > (LAYERS[found]?.length ?? 0) ? at : found,
    -1,
  )

t.test('every folder of shared has a layer', (t) => {
  const strange = files.filter((path) => path.startsWith('shared/') && findLayer(path) === -1)
  t.same(strange, [])
  t.end()
})

t.test('no folder of shared imports one of a lower layer', (t) => {
  const wrong = imports.filter(
    ({ from, to }) => from.startsWith('shared/') && findLayer(to) > findLayer(from),
  )
  t.ok(imports.length > 2000)
  t.same(wrong.map(line), [])
  t.end()
})

t.test('no two folders import each other, types included', (t) => {
  // The guest files are one script, which finds them by name.
  const between = imports
    .filter(({ from }) => !from.startsWith('worker/executor/guest/'))
    .map(({ from, to }) => [posix.dirname(from), posix.dirname(to)] as const)
  const ways = new Set(between.map(([from, to]) => `${from} and ${to}`))
  const mutual = between.filter(([from, to]) => from < to && ways.has(`${to} and ${from}`))
  t.same([...new Set(mutual.map(([from, to]) => `${from} and ${to}`))], [])
  t.end()
})

t.test('shared, server, worker and executor do not import each other', (t) => {
  const wrong = imports.filter(({ from, to }) => {
    const [own = '', other = ''] = [from.split('/')[0], to.split('/')[0]]
    const isOutside = from.startsWith('worker/executor/') && !to.startsWith('worker/executor/')
    return isOutside || !(other === own || other === 'shared' || to === 'package.json')
  })
  t.same(wrong.map(line), [])
  t.end()
})

t.test('the console runs in a browser: it shares no code with the rest of the product', (t) => {
  const isConsole = (path: string) => path.startsWith('server/console/')
  const wrong = imports.filter(({ from, to }) => isConsole(from) !== isConsole(to))
  t.same(wrong.map(line), [])
  t.end()
})

t.test('no imports go in a circle, types included', (t) => {
  t.same(circles(), [])
  t.end()
})

t.test('imports each package only in its own places', (t) => {
  const wrong = named.filter(({ from, to }) => PACKAGES.get(to)?.test(from) === false)
  t.same(wrong.map(line), [])
  t.end()
})

t.test('allows SQL only in the store and in listed files of features', (t) => {
  const holders = files.filter((path) => SQL.test(texts.get(path) ?? ''))
  t.same(
    holders.filter((path) => !SQL_FILES.some((allowed) => allowed.test(path))),
    [],
  )
  t.end()
})

t.test('settings are read in shared/core/config alone', (t) => {
  const wrong = files.filter(
    (path) => !path.startsWith('shared/core/config/') && texts.get(path)?.includes('process.env'),
  )
  t.same(wrong, [])
  t.end()
})

t.test('no file re-exports another', (t) => {
  const wrong = files.filter((path) => /^export .*\bfrom '/m.test(texts.get(path) ?? ''))
  t.same(wrong, [])
  t.end()
})

t.test('no file has more than 400 lines', (t) => {
  const wrong = files.filter((path) => (texts.get(path) ?? '').split('\n').length > 401)
  t.same(wrong, [])
  t.end()
})

/** Returns each strongly connected set of more than one file (Tarjan's algorithm). */
function circles(): readonly (readonly string[])[] {
  const next = Map.groupBy(imports, ({ from }) => from)
  const order = new Map<string, number>()
  const low = new Map<string, number>()
  const stack: string[] = []
  const found: (readonly string[])[] = []
  const visit = (file: string) => {
    order.set(file, order.size)
    low.set(file, order.get(file) ?? 0)
    stack.push(file)
    for (const { to } of next.get(file) ?? []) {
      if (!order.has(to)) visit(to)
      else if (!stack.includes(to)) continue
      low.set(file, Math.min(low.get(file) ?? 0, low.get(to) ?? 0))
    }
    if (low.get(file) !== order.get(file)) return
    const circle = stack.splice(stack.indexOf(file))
    if (circle.length > 1) found.push(circle.toSorted())
  }
  for (const file of files) if (!order.has(file)) visit(file)
  return found
}
