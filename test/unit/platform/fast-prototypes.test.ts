import { setFlagsFromString } from 'node:v8'
import t from 'tap'
import { makePrototypesFast } from '../../../shared/core/fast-prototypes.ts'

setFlagsFromString('--allow-natives-syntax')
const isFast = new Function('object', 'return %HasFastProperties(object)') as (
  object: object,
) => boolean

t.test('keeps fast string and number methods despite subclasses', async (t) => {
  for (const prototype of [String.prototype, Number.prototype]) t.ok(isFast(prototype))
  await import('ioredis')
  await import('../../../shared/fhir/json.ts')
  t.notOk(isFast(String.prototype), 'remove the workaround if this fails')
  t.notOk(isFast(Number.prototype))

  makePrototypesFast()

  t.ok(isFast(String.prototype))
  t.ok(isFast(Number.prototype))
})

t.test('keeps fast methods afterwards', async (t) => {
  class Text extends String {}
  class Count extends Number {}
  t.equal(new Text('a').length + new Count(1).valueOf(), 2)

  t.ok(isFast(String.prototype))
  t.ok(isFast(Number.prototype))
})
