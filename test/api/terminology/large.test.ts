/** Imports the index of concepts, to measure the turns of a large code system. */
import t from 'tap'
import { indexConcepts } from '../../../shared/terminology/concept-index.ts'
import { listConcepts } from '../../../shared/terminology/concepts.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin, createTenant } = await openBotica(t)

const COUNT = 20_000
const url = 'http://example.org/large'
/** A tree with ten children per code and root c0. */
const codeSystem = {
  resourceType: 'CodeSystem',
  url,
  status: 'active',
  content: 'complete',
  hierarchyMeaning: 'is-a',
  property: [{ code: 'parent', type: 'code' }],
  concept: Array.from({ length: COUNT }, (_, i) => ({
    code: `c${i}`,
    display: `Concept ${i}`,
    ...(i === 0 ? {} : { property: [{ code: 'parent', valueCode: `c${Math.floor(i / 10)}` }] }),
  })),
}

/** Counts event-loop turns while `work` runs. */
async function turnsDuring<T>(work: () => Promise<T>): Promise<{ turns: number; result: T }> {
  let turns = 0
  let isOver = false
  const tick = () => {
    turns += 1
    if (!isOver) setImmediate(tick)
  }
  setImmediate(tick)
  const result = await work()
  isOver = true
  return { turns, result }
}

t.test('yields while indexing and searching a large code system', async (t) => {
  const { turns, result: index } = await turnsDuring(() => indexConcepts(codeSystem))
  t.equal(index.nodes.size, COUNT)
  t.ok(turns > 60, `${turns}`)
  const filters = [{ property: 'concept', op: 'is-a', value: 'c1' }]
  const searched = await turnsDuring(() =>
    listConcepts(index, { text: 'concept', filters, limit: 5 }),
  )
  t.ok(searched.turns > 40, `${searched.turns}`)
  t.match(searched.result, { isCut: true, concepts: [{ code: 'c1' }] })
})

t.test('returns equal results to concurrent callers', async (t) => {
  const { id } = await admin.create(codeSystem)
  const lookup = `CodeSystem/$lookup?system=${url}&code=c19`
  const answers = await Promise.all(Array.from({ length: 6 }, () => admin.get(lookup)))
  for (const { status, body } of answers) {
    t.equal(status, 200)
    t.match(JSON.stringify(body), '"Concept 19"')
  }
  const below = `CodeSystem/${id}/$subsumes?codeA=c1&codeB=c19999`
  t.match(JSON.stringify((await admin.get(below)).body), '"subsumes"')
  const { admin: stranger } = await createTenant()
  t.equal((await stranger.get(lookup)).status, 404)
})

t.test('uses a changed code system at once', async (t) => {
  const found = await admin.get<{ entry: [{ resource: typeof codeSystem & { id: string } }] }>(
    `CodeSystem?url=${url}`,
  )
  const stored = found.body.entry[0].resource
  const concept = [...stored.concept, { code: 'new', display: 'New' }]
  t.equal((await admin.put(`CodeSystem/${stored.id}`, { ...stored, concept })).status, 200)
  t.equal((await admin.get(`CodeSystem/$lookup?system=${url}&code=new`)).status, 200)
})

t.test('$expand leaves out abstract codes before it cuts a large list', async (t) => {
  const half = 6_000
  const codes = Array.from({ length: 2 * half }, (_, i) => `n${i}`)
  const stored = `${url}/abstract`
  const imported = `${url}/abstract-imported`
  const isAbstract = (i: number) => i % 2 === 1
  const base = { resourceType: 'CodeSystem', status: 'active' }
  const property = [{ code: 'notSelectable', valueBoolean: true }]
  await admin.create({
    ...base,
    url: stored,
    content: 'complete',
    concept: codes.map((code, i) => ({ code, ...(isAbstract(i) ? { property } : {}) })),
  } as Resource)
  await admin.create({ ...base, url: imported, content: 'not-present' } as Resource)
  const parts = (code: string) => [
    { name: 'code', valueCode: code },
    { name: 'property', valueCode: 'notSelectable' },
    { name: 'value', valueString: 'true' },
  ]
  for (const own of [codes.slice(0, half), codes.slice(half)]) {
    const parameter = [
      { name: 'system', valueUri: imported },
      ...own.map((code) => ({ name: 'concept', valueCoding: { code } })),
      ...own
        .filter((_, i) => isAbstract(i))
        .map((code) => ({ name: 'property', part: parts(code) })),
    ]
    const { status } = await admin.post('CodeSystem/$import', {
      resourceType: 'Parameters',
      parameter,
    })
    t.equal(status, 200)
  }
  for (const system of [stored, imported]) {
    const all = `ValueSet/$expand?url=${encodeURIComponent(`${system}?fhir_vs`)}`
    const { body } = await admin.get<Raw>(
      `${all}&excludeNotForUI=true&offset=${half - 1000}&count=1000`,
    )
    const { total, contains = [] } = body.expansion
    t.equal(total, half, system)
    t.equal(contains.length, 1000)
    t.equal(contains.at(-1)?.code, `n${2 * half - 2}`)
    const whole = await admin.get<Raw>(`${all}&offset=5000&count=1000`)
    t.equal(whole.body.expansion.total, undefined)
    t.equal(whole.body.expansion.contains[1].code, 'n5001')
  }
})
