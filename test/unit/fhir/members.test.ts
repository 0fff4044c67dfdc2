import t from 'tap'
import { itemOffsets, memberOffsets, numbered } from '../../../shared/fhir/json-text.ts'
import { r4Examples } from '../../fixtures/resources.ts'

function parseMembers(text: string, names: readonly string[]): object | undefined {
  const members = numbered(names)
  const places = memberOffsets(text, 0, members)
  const found = [...members].flatMap(([name, number]) => {
    const [begin, end] = [places?.[2 * number], places?.[2 * number + 1]]
    return begin ? [[name, JSON.parse(text.slice(begin, end))] as const] : []
  })
  return places && Object.fromEntries(found)
}

const awkward = [
  '{"a":"\\"","b":"\\\\","c":"x\\\\\\"y,\\"b\\":1","d":2}',
  '{"a":{"b":[{"c":"}]"}],"d":{}},"b":[],"c":-1.5e-7,"d":null}',
  '{"a":[[1,2],["]",{"b":"[{"}]],"b":true,"c":false,"d":"ü{€}"}',
  '{"a":1}',
]
for (const text of awkward) {
  t.test(`each member of ${text} is read alone`, async (t) => {
    const all = JSON.parse(text) as Record<string, unknown>
    for (const [name, value] of Object.entries(all)) {
      t.same(parseMembers(text, [name]), { [name]: value })
    }
    t.same(parseMembers(text, [...Object.keys(all), 'none']), all)
  })
}

t.test('each member of each published example is read alone', async (t) => {
  for (const resource of await r4Examples()) {
    const text = JSON.stringify(resource)
    const wrong = Object.entries(resource).filter(([name, value]) => {
      const found = parseMembers(text, [name, 'none'])
      return JSON.stringify(found) !== JSON.stringify({ [name]: value })
    })
    t.same(wrong, [], `${resource.resourceType}/${resource.id}`)
  }
})

for (const text of ['{ "a":1}', '{"a" :1}', '{"a": 1}', '{"a":1, "b":2}', '{"a\\"b":1}', '{}']) {
  t.test(`${text} is left to the parser`, async (t) => {
    t.equal(parseMembers(text, ['b']), undefined)
  })
}

t.test('members and items are found by their places, at any depth', async (t) => {
  const text = '{"a":[{"b":"]"},[1,{}],"x,y",-1.5,null],"c":{"d":true}}'
  const slices = (places: readonly number[] = []) =>
    places.flatMap((from, i) => (i % 2 === 0 ? text.slice(from, places[i + 1]) : []))

  const members = memberOffsets(text, 0, numbered(['c', 'a', 'none']))
  t.same(slices(members), ['{"d":true}', '[{"b":"]"},[1,{}],"x,y",-1.5,null]', ''])
  t.same(slices(itemOffsets(text, 5)), ['{"b":"]"}', '[1,{}]', '"x,y"', '-1.5', 'null'])
  t.same(slices(memberOffsets(text, members?.[0] ?? 0, numbered(['d']))), ['true'])
})

for (const text of ['[ 1]', '[1, 2]', '[{} ]']) {
  t.test(`${text} is left to the parser`, async (t) => t.equal(itemOffsets(text, 0), undefined))
}
