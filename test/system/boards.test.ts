/** Checks the metrics in the dashboard and alerts of docs/operate with a real Prometheus. */
import { execFileSync, spawn } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { freePort } from '../../scripts/service.ts'
import { openBotica, until } from '../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../fixtures/bots/bots.ts'

const FOLDER = join(import.meta.dirname, '../../docs/operate')
const RULES = join(FOLDER, 'alerts.yaml')
const NAME = /\b(?:[a-z]+_)+(?:seconds|bytes|total|connections|up|jobs|held|bucket|p99_seconds)\b/g
const NOT_HERE = /^database_replica_/
/** Panels without data in an idle service. */
const MAY_BE_EMPTY = new Set(['Age of queues', 'Runs held', 'Replicas'])

interface Panel {
  readonly title: string
  readonly targets: readonly { readonly expr: string }[]
}

const board: { readonly panels: readonly Panel[] } = JSON.parse(
  readFileSync(join(FOLDER, 'board.json'), 'utf8'),
)
const rules = [...readFileSync(RULES, 'utf8').matchAll(/^ {8}expr: '(.*)'$/gm)].map(
  ([, expr = '']) => expr.replaceAll("''", "'"),
)
const expressions = [
  ...board.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
  ...rules,
]

const botica = await openBotica(t, { worker: 'process' })
const bot = await aBot(botica, handler('return 1'))
await execute(botica.admin, bot)
const metrics = async () => (await botica.anonymous.get('/metrics')).text

t.test('exposes every metric used by the dashboard and the alerts', async (t) => {
  await until(async () => (await metrics()).includes('bot_runs_total{'), 60_000)
  const text = await metrics()
  const names = new Set(expressions.flatMap((expr) => expr.match(NAME) ?? []))
  t.ok(names.size > 15)
  t.same(
    [...names].filter(
      (name) => !NOT_HERE.test(name) && !new RegExp(`^(# TYPE )?${name}[{ ]`, 'm').test(text),
    ),
    [],
  )
})

const hasPrometheus = isThere('prometheus') && isThere('promtool')
t.test(
  'loads the rules, scrapes the service and answers every panel in Prometheus',
  { skip: hasPrometheus ? false : 'there is no Prometheus here' },
  async (t) => {
    execFileSync('promtool', ['check', 'rules', RULES])
    const folder = temporaryFolder('botica-prometheus-')
    t.teardown(() => rmSync(folder, { recursive: true, force: true }))
    const file = join(folder, 'prometheus.yml')
    const { host } = new URL(botica.baseUrl)
    const target = `static_configs: [{ targets: ['${host}'] }]`
    writeFileSync(
      file,
      `global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: ['${RULES}']
scrape_configs: [{ job_name: botica, ${target} }]
`,
    )
    const port = await freePort()
    const args = [`--config.file=${file}`, `--storage.tsdb.path=${folder}/data`]
    const prometheus = spawn('prometheus', [...args, `--web.listen-address=127.0.0.1:${port}`], {
      stdio: 'ignore',
    })
    t.teardown(() => prometheus.kill('SIGKILL'))
    const ask = async (path: string): Promise<Untyped> => {
      const response = await fetch(`http://127.0.0.1:${port}/api/v1/${path}`)
      return await response.json()
    }
    const series = async (expr: string) =>
      (await ask(`query?query=${encodeURIComponent(expr)}`)).data.result.length
    const isScraped = () => series('rate(bot_runs_total[1m])').catch(() => 0)
    await until(async () => (await isScraped()) > 0, 120_000)

    for (const { title, targets } of board.panels) {
      for (const { expr } of targets) {
        const count = await series(expr)
        t.ok(count > 0 || MAY_BE_EMPTY.has(title), `${title}: ${expr}`)
      }
    }
    const judged = async (): Promise<readonly Untyped[]> =>
      (await ask('rules')).data.groups[0].rules
    await until(async () => (await judged()).every((rule) => rule.health !== 'unknown'), 60_000)
    t.same(
      (await judged()).filter((rule) => rule.health !== 'ok'),
      [],
    )
    t.equal((await judged()).length, rules.length)
  },
)

function isThere(program: string): boolean {
  try {
    execFileSync(program, ['--version'], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}
