/** Query strings as objects. https://nodejs.org/api/querystring.html */

function parse(text) {
  const { URLSearchParams } = require('./url.cjs')
  const query = Object.create(null)
  for (const [name, value] of new URLSearchParams(String(text))) {
    query[name] = name in query ? [query[name], value].flat() : value
  }
  return query
}

function stringify(query) {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    [value].flat().map((item) => [name, item ?? '']),
  )
  return pairs.map((pair) => pair.map(encodeURIComponent).join('=')).join('&')
}

module.exports = { parse, stringify }
