/** `$subsumes` by the meaning of the hierarchy. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const url = 'https://example.org/hierarchy'

async function outcome(path: string): Promise<unknown> {
  const { body } = await admin.get<Raw>(path)
  return body.parameter?.[0].valueCode
}

t.test('$subsumes follows only hierarchies whose children are special cases', async (t) => {
  for (const [hierarchyMeaning, expected] of [
    ['is-a', 'subsumes'],
    ['classified-with', 'subsumes'],
    [undefined, 'subsumes'],
    ['part-of', 'not-subsumed'],
    ['grouped-by', 'not-subsumed'],
  ] as const) {
    const { id } = await admin.create({
      resourceType: 'CodeSystem',
      url: `${url}/${hierarchyMeaning}`,
      status: 'active',
      content: 'complete',
      ...(hierarchyMeaning === undefined ? {} : { hierarchyMeaning }),
      property: [{ code: 'parent', type: 'code' }],
      concept: [
        { code: 'whole', concept: [{ code: 'part' }] },
        { code: 'linked', property: [{ code: 'parent', valueCode: 'whole' }] },
      ],
    } as Raw)
    const name = String(hierarchyMeaning)
    for (const part of ['part', 'linked']) {
      const path = `CodeSystem/${id}/$subsumes?codeA=whole&codeB=${part}`
      t.equal(await outcome(path), expected, `${name}: ${part}`)
    }
    const same = `CodeSystem/${id}/$subsumes?codeA=part&codeB=part`
    t.equal(await outcome(same), 'equivalent', name)
    const unknown = `CodeSystem/${id}/$subsumes?codeA=part&codeB=none`
    t.equal((await admin.get(unknown)).status, 400, name)
  }
})
