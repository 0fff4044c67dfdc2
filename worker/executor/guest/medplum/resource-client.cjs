/** The part of a bot's client that reads, writes and searches resources. */

const { ContentType } = require('./constants.cjs')
const { OperationOutcomeError, badRequest } = require('./outcomes.cjs')
const { ask, parsed, send, serverPath } = require('./requests.cjs')

const pageSize = 1000

function refuse(text) {
  throw new OperationOutcomeError(badRequest(text))
}

/** Encodes an id, so that it cannot change the path. */
function segment(value, name) {
  if (typeof value === 'string' && value !== '') return encodeURIComponent(value)
  return refuse(`The "${name}" parameter cannot be null, undefined, or an empty string.`)
}

function requireType(resource) {
  return resource?.resourceType ?? refuse('Missing resourceType')
}

function searchParams(query) {
  const { URLSearchParams } = require('../web/url.cjs')
  if (typeof query !== 'object' || query === null) return new URLSearchParams(query ?? '')
  if (query.searchParams !== undefined) return new URLSearchParams(query.searchParams)
  if (typeof query[Symbol.iterator] === 'function') return new URLSearchParams(query)
  return new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined))
}

function searchPath(type, query) {
  const text = searchParams(query).toString()
  return text === '' ? type : `${type}?${text}`
}

function limited(query, count) {
  const params = searchParams(query)
  params.set('_count', String(count))
  return params
}

/** Returns the resources of a Bundle as an array that also has the Bundle. */
function listResources(bundle) {
  const resources = (bundle.entry ?? []).map((entry) => entry.resource)
  return Object.assign(resources, { bundle })
}

class ResourceClient {
  async get(url, options) {
    return ask('GET', serverPath(url), { options })
  }

  async post(url, body, contentType, options) {
    return ask('POST', serverPath(url), { body, contentType, options })
  }

  async put(url, body, contentType, options) {
    return ask('PUT', serverPath(url), { body, contentType, options })
  }

  async patch(url, body, options) {
    return ask('PATCH', serverPath(url), { body, contentType: ContentType.JSON_PATCH, options })
  }

  async delete(url, options) {
    return ask('DELETE', serverPath(url), { options })
  }

  async createResource(resource, options) {
    return ask('POST', requireType(resource), { body: resource, options })
  }

  async createResourceIfNoneExist(resource, query, options) {
    const text = typeof query === 'string' ? query : searchParams(query).toString()
    const headers = { ...options?.headers, 'If-None-Exist': text.replace(/^\?/, '') }
    return ask('POST', requireType(resource), { body: resource, options: { ...options, headers } })
  }

  async upsertResource(resource, query, options) {
    const path = searchPath(requireType(resource), query)
    return (await ask('PUT', path, { body: resource, options })) ?? resource
  }

  async updateResource(resource, options) {
    const type = requireType(resource)
    if (!resource.id) refuse('Missing id')
    const path = `${type}/${segment(resource.id, 'id')}`
    const answer = await send('PUT', path, { body: resource, options })
    return answer.status === 304 ? resource : (parsed(answer) ?? resource)
  }

  async patchResource(type, id, operations, options) {
    const request = { body: operations, contentType: ContentType.JSON_PATCH, options }
    return ask('PATCH', `${type}/${segment(id, 'id')}`, request)
  }

  async deleteResource(type, id, options) {
    return ask('DELETE', `${type}/${segment(id, 'id')}`, { options })
  }

  async readResource(type, id, options) {
    return ask('GET', `${type}/${segment(id, 'id')}`, { options })
  }

  async readReference(reference, options) {
    const text = reference?.reference
    if (!text) refuse('Missing reference')
    if (text === 'system') {
      const deviceName = [{ type: 'model-name', name: 'System' }]
      return { resourceType: 'Device', id: 'system', deviceName }
    }
    const [type, id] = text.split('/')
    if (!type || !id || text.includes('?')) refuse('Invalid reference')
    return this.readResource(type, id, options)
  }

  async readHistory(type, id, { count, offset } = {}, options) {
    const path = `${type}/${segment(id, 'id')}/_history`
    return ask('GET', searchPath(path, { _count: count, _offset: offset }), { options })
  }

  async readVersion(type, id, vid, options) {
    const path = `${type}/${segment(id, 'id')}/_history/${segment(vid, 'vid')}`
    return ask('GET', path, { options })
  }

  async readCanonical(type, url, options) {
    if (!Array.isArray(type)) return this.searchOne(type, { url }, options)
    return this.searchOne('', { _type: type.join(','), url }, options)
  }

  async search(type, query, options) {
    return ask('GET', searchPath(type, query), { options })
  }

  async searchOne(type, query, options) {
    const bundle = await this.search(type, limited(query, 1), options)
    return bundle.entry?.[0]?.resource
  }

  async searchResources(type, query, options) {
    return listResources(await this.search(type, query, options))
  }

  async *searchResourcePages(type, query, options) {
    const params = searchParams(query)
    if (!params.has('_count')) params.set('_count', String(pageSize))
    let bundle = await this.search(type, params, options)
    for (;;) {
      const next = bundle.link?.find((link) => link.relation === 'next')?.url
      if (!bundle.entry?.length && next === undefined) return
      yield listResources(bundle)
      if (next === undefined) return
      bundle = await this.get(next, options)
    }
  }
}

module.exports = { ResourceClient, refuse, searchPath, segment, requireType }
