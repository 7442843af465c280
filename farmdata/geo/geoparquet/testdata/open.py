# Opens GeoParquet files with GeoPandas and DuckDB and prints what is in them, one
# line of JSON for each: python3 open.py FILE...
import json
import sys

import duckdb
import geopandas

for name in sys.argv[1:]:
    frame = geopandas.read_parquet(name)
    west, south, east, north = (float(x) for x in frame.total_bounds)
    half = geopandas.read_parquet(name, bbox=(west, south, (west + east) / 2, north))
    rows, smallest, largest = duckdb.connect().execute(
        "select count(*), min(bbox.xmin), max(bbox.ymax) from read_parquet(?)", [name]).fetchone()
    described = duckdb.connect().execute(
        "select decode(value) from parquet_kv_metadata(?) where decode(key) = 'farmdata:columns'", [name]).fetchone()
    print(json.dumps({
        "units": {column: what["unit"] for column, what in json.loads(described[0]).items()} if described else {},
        "rows": len(frame), "half": len(half), "crs": frame.crs.to_string(), "bounds": [west, south, east, north],
        "valid": bool(frame.geometry.is_valid.all()), "types": sorted(set(frame.geometry.geom_type)),
        "time": str(frame["time"].dtype) if "time" in frame else "", "duckdb": [rows, smallest, largest],
    }))
