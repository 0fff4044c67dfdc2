import { readFileSync } from 'node:fs'
import t from 'tap'
import { parseJson } from '../../../../shared/fhir/json.ts'
import type { Resource } from '../../../../shared/fhir/resource.ts'
import { applyPatch, readPatch } from '../../../../shared/rest/patch/patch.ts'

const patient: Resource = {
  resourceType: 'Patient',
  id: 'p',
  active: true,
  name: [{ family: 'A', given: ['B', 'C'] }],
}
const patched = (patch: unknown, resource = patient) => applyPatch(resource, readPatch(patch))

interface Case {
  readonly comment: string
  readonly doc: Record<string, unknown>
  readonly patch: unknown
  readonly expected?: unknown
  readonly error?: string
}
const cases = JSON.parse(
  readFileSync(new URL('../../../data/json-patch-tests.json', import.meta.url), 'utf8'),
) as Case[]
for (const { comment, doc, patch, expected, error } of cases) {
  t.test(`passes the published case "${comment}"`, async (t) => {
    const resource = { resourceType: 'Basic', id: 'b', ...doc }
    if (error !== undefined) return t.throws(() => patched(patch, resource))
    const { resourceType, id, ...result } = patched(patch, resource)
    t.same(result, expected)
  })
}

const refused: [string, unknown, RegExp][] = [
  ['a body that is not an array', { op: 'add' }, /^Patch body must be an array$/],
  ['a failing test', [{ op: 'test', path: '/active', value: false }], /operation 0 \(\/active\)/],
  [
    'a missing target',
    [
      { op: 'test', path: '/active', value: true },
      { op: 'replace', path: '/gender', value: 'male' },
    ],
    /operation 1 \(\/gender\) target does not exist/,
  ],
  ['another id', [{ op: 'replace', path: '/id', value: 'x' }], /^Incorrect ID$/],
  ['another type', [{ op: 'replace', path: '/resourceType', value: 'Basic' }], /type$/],
  ['the whole document', [{ op: 'replace', path: '', value: [] }], /type$/],
  ['a step into a string', [{ op: 'add', path: '/id/0', value: 'x' }], /target/],
  ['the end of an array', [{ op: 'remove', path: '/name/-' }], /target/],
  ['a padded index', [{ op: 'remove', path: '/name/00' }], /target/],
  ['an inherited name', [{ op: 'remove', path: '/constructor' }], /target/],
  ['an inherited prototype', [{ op: 'add', path: '/__proto__/x', value: 1 }], /target/],
  ['a move into itself', [{ op: 'move', from: '/name', path: '/name/0/x' }], /into itself/],
  ['an unknown op', [{ op: 'merge', path: '/active' }], /unknown op/],
  ['an add without a value', [{ op: 'add', path: '/gender' }], /needs a value/],
  ['an operation that is null', [null], /must be an object/],
  ['a path that is a number', [{ op: 'remove', path: 1 }], /invalid path/],
]
for (const [name, patch, text] of refused) {
  t.test(`rejects a patch with ${name}`, async (t) => {
    t.throws(() => patched(patch), { message: text })
  })
}

t.test('creates a missing array by an addition to its end', async (t) => {
  const telecom = { system: 'phone' }
  const result = patched([
    { op: 'add', path: '/telecom/-', value: telecom },
    { op: 'add', path: '/name/0/prefix/-', value: 'Dr' },
  ])
  t.match(result, { telecom: [telecom], name: [{ prefix: ['Dr'] }] })
})

t.test('leaves the input resource unchanged', async (t) => {
  const before = JSON.stringify(patient)
  patched([{ op: 'remove', path: '/name/0/given/0' }])
  t.equal(JSON.stringify(patient), before)
})

t.test('limits exponential growth by copies', async (t) => {
  const doubling = Array.from({ length: 60 }, (_, index) => ({
    op: 'copy',
    from: '/name',
    path: `/name/0/x${index}`,
  }))
  t.throws(() => patched(doubling), { message: /copies of this patch/ })
})

t.test('keeps the text of decimals in patched and other elements', async (t) => {
  const before = parseJson('{"resourceType":"Basic","id":"b","a":1.00,"c":3}') as Resource
  const patch = parseJson(
    '[{"op":"add","path":"/b","value":2.50},{"op":"test","path":"/a","value":1}]',
  )
  t.equal(
    JSON.stringify(patched(patch, before)),
    '{"resourceType":"Basic","id":"b","a":1.00,"c":3,"b":2.50}',
  )
})
