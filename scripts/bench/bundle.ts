/**
 * Synthea transaction bundles, as a client sends them, against the same resources written as rows of one
 * plain table, a statement and a commit a bundle. Both run in this process, round about.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { handle } from '../../shared/api/handle.ts'
import { syntheaTexts } from '../../test/fixtures/resources.ts'
import type { Figure } from '../bench.ts'
import { benchPrincipal } from './crud.ts'
import { type Load, measure, median } from './load.ts'
import { openStage, type Stage } from './stage.ts'

const ROUNDS = 3
const CALLERS = 8

export async function bundle(seconds: number): Promise<readonly Figure[]> {
  const stage = await openStage()
  try {
    const bench = await prepare(stage)
    await measure(CALLERS, seconds, bench.transaction)
    const rounds: { ours: Load; limit: Load; statements: number }[] = []
    for (let round = 0; round < ROUNDS; round++) {
      const limit = await measure(CALLERS, seconds, bench.raw)
      const before = stage.services.database.statements
      const sent = bench.sent()
      const ours = await measure(CALLERS, seconds, bench.transaction)
      const statements = (stage.services.database.statements - before) / (bench.sent() - sent)
      if (ours.failed + limit.failed > 0) throw new Error('Bundles failed')
      rounds.push({ ours, limit, statements })
    }
    await bench.close()
    const side = (name: 'ours' | 'limit') => {
      const of = (value: (load: Load) => number) =>
        median(rounds.map((round) => value(round[name])))
      const perSecond = of((load) => load.perSecond)
      return [
        `${perSecond.toFixed(1)} bundles/s`,
        `${Math.round(perSecond * bench.entries)} resources/s`,
        `p50 ${of((load) => load.p50Ms).toFixed(1)} ms`,
        `p99 ${of((load) => load.p99Ms).toFixed(1)} ms`,
      ].join(', ')
    }
    const ratio = median(rounds.map(({ ours, limit }) => ours.perSecond / limit.perSecond))
    const statements = median(rounds.map((round) => round.statements)).toFixed(1)
    return [
      {
        what: `transaction, ${CALLERS} callers`,
        ours: `${side('ours')}, ${statements} statements a bundle`,
        limit: side('limit'),
        ratio: ratio.toFixed(2),
        required: '',
      },
    ]
  } finally {
    await stage.close()
  }
}

async function prepare({ services, config }: Stage) {
  const principal = await benchPrincipal(services)
  const texts = await syntheaTexts()
  const resources = texts.map((text) => {
    const { entry } = JSON.parse(text) as { entry: { resource: unknown }[] }
    return entry.map(({ resource }) => JSON.stringify(resource))
  })
  const pool = new pg.Pool({ connectionString: config.databaseUrl, max: CALLERS })
  await pool.query('create table bench_raw (id uuid primary key, content text not null)')
  let turn = 0
  let sent = 0
  const next = <T>(list: readonly T[]): T => {
    const item = list[turn++ % list.length]
    if (item === undefined) throw new Error('There is no bundle')
    return item
  }
  return {
    /** Mean number of entries. */
    entries: resources.flat().length / resources.length,
    sent: () => sent,
    async transaction(): Promise<boolean> {
      sent += 1
      const reply = await handle(services, principal, {
        method: 'POST',
        path: '',
        query: new URLSearchParams(),
        headers: { 'content-type': 'application/fhir+json' },
        body: Buffer.from(next(texts)),
        requestId: randomUUID(),
        traceId: randomUUID(),
      })
      return reply.status === 200
    },
    async raw(): Promise<boolean> {
      const contents = next(resources)
      await pool.query({
        name: 'bench_bundle',
        text: 'insert into bench_raw select * from unnest($1::uuid[], $2::text[])',
        values: [contents.map(() => randomUUID()), contents],
      })
      return true
    },
    close: () => pool.end(),
  }
}
